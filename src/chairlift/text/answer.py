"""The text of one answer: tokens in, text that may be sent out, until a stop string ends it. Knows no engine and no HTTP."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from chairlift.text.detokenize import Detokenizer, Vocabulary
from chairlift.text.stops import StopMatcher

Ending = Literal["stop", "length", "abort"]


class Part(NamedTuple):
    """What is new of an answer. The last part, and only it, has an `ending`; `reason` is what is behind it (a stop string)."""

    text: str
    ending: Ending | None = None
    reason: int | str | None = None


class Answer:
    """Detokenises and looks for stops, token by token, so that it does not matter how many arrive at once.

    A stop counts only if it is completed after the first `min_tokens` tokens; one that is complete before is text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens)
        self._matcher = StopMatcher(stops, include=include_stop) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self.tokens = 0
        """Tokens of the answer, the one that ended it included and none after it."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer."""
        return self._matcher.matched if self._matcher else None

    def take(self, tokens: Sequence[int], ending: Ending | None = None, reason: int | str | None = None) -> Part:
        """What the next tokens add, and whether the answer ends: because they completed a stop string, or as `ending` says.

        The token that is the `reason` of an ending, or an end token, is the last one: it counts, but it is no more text than a
        stop string is. Nothing may be taken after the end.
        """
        silent = ending == "stop" and not self._include_stop
        text = self.feed(tokens[:-1] if silent else tokens)
        if ending is not None and self.stopped is None:
            self.tokens += silent
            text += self.finish()
        if self.stopped is not None:
            return Part(text, "stop", self.stopped)
        return Part(text, ending, reason)

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that may be sent now. Tokens after a stop are ignored."""
        sent: list[str] = []
        for token in tokens:
            if self.stopped is not None:
                break
            self.tokens += 1
            sent.append(self._send(self._detokenizer.feed(token)))
        return "".join(sent)

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if self._matcher is None:
            return self._detokenizer.finish()
        if self.stopped is not None:
            return ""
        return self._send(self._detokenizer.finish()) + self._matcher.finish()

    def _send(self, text: str) -> str:
        if self._matcher is None:
            return text
        return self._matcher.feed(text, armed=self.tokens > self._min_tokens)
