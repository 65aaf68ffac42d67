"""Random trials for the examination of executors: what is asked of an engine, when, and within which limits.

Chance comes in as an argument. Limits are drawn so that what is rare in a server happens often here: prompts are cut, requests
begin alike, and memory is short.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.evaluate.logits import blocks_for
from chairlift.schedule.presets import GATES

PRESETS = ("continuous", "continuous", "continuous", *GATES)
ALIKE = 0.7
"""Chance that a request begins like an earlier one."""
SCARCE = 0.75
"""Chance that memory is hardly enough for the longest request alone."""
SPARE_BLOCKS = 2
CACHING = 0.75
"""Chance that prefixes are kept."""
LATEST = 12
"""Step before which the last request has been submitted."""
SHORT = 8
LARGE = 256
"""Tokens of a step in which whole prompts find room."""
LEAST_FOR_LONG = 16
"""Tokens of a step for a long prompt, which would take too many steps otherwise."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: a prompt, which is the first `prompt` of its `tokens`, and the answer that it is given.

    It is submitted before step number `step`. Logits are compared after as many tokens as `checked` says: at least `prompt`,
    and less than all, as nothing is computed from the last one.
    """

    tokens: tuple[int, ...]
    prompt: int
    checked: frozenset[int]
    step: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Requests, the limits of an engine, and which block of the executor each of the scheduler's blocks is."""

    asked: tuple[Asked, ...]
    config: EngineConfig
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of random trials, and so of the executors that they need. All lengths are in tokens.

    At most `requests` come in a trial, with prompts of at most `prompt`. One of them may be `long`, if that is not None: long
    enough for executors that cut attention into segments. At most `checked` logits of a request are compared.
    """

    requests: int = 6
    prompt: int = 90
    answer: int = 40
    long: int | None = 1100
    checked: int = 3
    block_size: int = 16

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest step: of the longest request, as one that is computed alone takes a single step."""
        return max(self.prompt, self.long or 0) + self.answer

    @property
    def num_blocks(self) -> int:
        """Blocks in which all requests of any trial find room, and one more for each."""
        longest, others = blocks_for(self.max_tokens, self.block_size), blocks_for(self.prompt + self.answer, self.block_size)
        return longest + others * (self.requests - 1) + self.requests

    def within(self, context: int) -> "Sizes":
        """These, or without long prompts if the model takes no such; ConfigError if it takes hardly anything."""
        if context >= self.max_tokens:
            return self
        if self.long is None:
            raise ConfigError(f"a context of {context} tokens is too short: trials need {self.max_tokens}")
        return replace(self, long=None).within(context)


def draw_trial(random: Random, text: Sequence[int], sizes: Sizes, *, long: bool = False) -> Trial:
    """A trial with pieces of `text` as prompts; `long`: one of them is long. `text` must be longer than any request."""
    asked: list[Asked] = []
    for number in range(random.randint(2, sizes.requests)):
        if long and number == 0 and sizes.long is not None:
            prompt = sizes.long
        else:
            prompt = random.randint(1, random.choice((SHORT, sizes.prompt, sizes.prompt)))
        asked.append(_asked(random, text, sizes, prompt, asked))
    config = _config(random, asked, sizes, least_budget=LEAST_FOR_LONG if long else 1)
    # Drawn at once, as a number: who looks for the smallest trial that fails need not try to sort the table as well.
    table = Random(random.randrange(2**32)).sample(range(sizes.num_blocks), config.num_blocks)  # noqa: S311
    return Trial(tuple(asked), config, tuple(table))


def _asked(random: Random, text: Sequence[int], sizes: Sizes, prompt: int, earlier: Sequence[Asked]) -> Asked:
    answer = random.choice((random.randint(1, sizes.answer), sizes.answer))
    start = random.randrange(len(text) - prompt - answer)
    tokens = tuple(text[start : start + prompt + answer])
    if earlier and random.random() < ALIKE:
        model = random.choice(earlier).tokens
        most = min(len(model), len(tokens), sizes.prompt)
        alike = random.choice((random.randint(1, most), most))
        tokens = (*model[:alike], *tokens[alike:])
    last = prompt + answer - 1
    checked = {prompt, last, *(random.randint(prompt, last) for _ in range(sizes.checked - 2))}
    return Asked(tokens, prompt, frozenset(checked), random.randint(0, LATEST) if earlier else 0)


def _config(random: Random, asked: Sequence[Asked], sizes: Sizes, *, least_budget: int) -> EngineConfig:
    places = random.choice((random.randint(1, sizes.requests), sizes.requests))
    least = max(places, least_budget)
    needs = [blocks_for(len(one.tokens), sizes.block_size) for one in asked]
    enough = sum(needs) + len(asked)
    scarce = min(enough, max(needs) + random.randint(0, SPARE_BLOCKS))
    return EngineConfig(
        max_model_len=max(len(one.tokens) for one in asked),
        num_blocks=scarce if random.random() < SCARCE else enough,
        block_size=sizes.block_size,
        max_num_seqs=places,
        max_num_batched_tokens=min(
            sizes.max_tokens, random.randint(least, least + random.choice((SHORT, sizes.prompt, LARGE)))
        ),
        enable_prefix_caching=random.random() < CACHING,
        preset=random.choice(PRESETS),
        batch_wait_s=random.choice((0.0, 3.0)),
    )
