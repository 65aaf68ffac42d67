"""A run of an engine core as lines of JSON: all that its decisions depend on, and a digest of every decision.

Knows what is told to a core and what it says after a step; knows neither files nor threads. There is no text in it: of the
tokens of prompts and answers only keyed digests are kept, from which no token can be read without the key, and the key is
thrown away. They tell which prompts begin alike, block by block, as that is what the prefix cache works with. Tenants and
salts are told apart in the same way; ids of requests stand as they are.

    {"record": 1, "chairlift": version, "model": name, "started": seconds since 1970, "engine": {settings}}
    {"submit": id, "arrival": s, "tokens": of the prompt, "marks": digests, "max_tokens": n, ...}
    {"end": id, "finish": "abort", "within": true}
    {"step": number, "now": s, "elapsed_s": s, "rows": n, "tokens": n, "plan": digest, "drawn": {id: mark}, "held": [why, id]}

Commands come before the step that they were taken before; `within` says that it was being computed already. What is empty or
as usual is left out.
"""

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

from chairlift.core.config import DEFAULTS, EngineConfig
from chairlift.core.errors import ChairliftError, RecordError
from chairlift.core.events import End, Step, Submit, Told
from chairlift.core.types import Finish, Limits, Output, Plan, Request, Stopping, choice_ids

FORMAT = 1
DIGEST_BYTES = 8
"""Of a plan."""
NAME_BYTES = 8
"""Of a tenant or a salt."""
MARK_BITS = 31
"""Marks stand in the place of tokens, which are 32-bit integers; those below 0 are ends."""

MAX_LINE_CHARS = 2**24
"""A longer line is refused before it is read to its end: a prompt of two million tokens fits, even in blocks of one token."""
MAX_SIZE = 2**24
"""Of everything that memory is taken for when a record is played: blocks, their tokens, the tokens of a request or a step."""
MAX_SAMPLES = 2**10
"""Answers to one prompt. Each of them is a name at once."""
MAX_WHOLE = 2**63 - 1
"""Of any other whole number, on either side of 0."""

EOS, STOP = -1, -2
"""What is drawn in a replay where an answer ended by itself: at an end-of-sequence token, or at a stop token."""
PLAIN = 0
"""What is drawn anywhere else, but for the marks."""


class Header(NamedTuple):
    """What was recorded, when (in seconds since 1970), and by which version."""

    version: str
    model: str
    started: float
    config: EngineConfig


class Turn(NamedTuple):
    """One step as it was recorded. `drawn` are the tokens that are not PLAIN, by sequence."""

    number: int
    now: float
    elapsed_s: float
    taken: tuple[Told, ...]
    within: tuple[Told, ...]
    drawn: Mapping[str, int]
    failed: tuple[str, ...]
    raised: bool
    launching: int | None
    rows: int
    tokens: int
    plan: str


def digest(plan: Plan) -> str:
    """Equal for plans that compute the same rows in the same blocks, and say the same beside it. Tokens do not count."""
    rows = [(row.seq_id, row.start, len(row.tokens), len(row.draws), row.pad, len(row.blocks)) for row in plan.work]
    state = blake2b(repr((plan._replace(work=()), rows)).encode(), digest_size=DIGEST_BYTES)
    state.update(b"".join([row.blocks.tobytes() for row in plan.work]))
    return state.hexdigest()


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Writer:
    """Turns the steps of one engine into lines, without their ends. With another `key` (secret, at most 64 bytes) all digests
    are others."""

    def __init__(self, config: EngineConfig, *, key: bytes) -> None:
        self._config = config
        self._key = key
        self._marked: dict[str, _Marks] = {}

    def header(self, *, version: str, model: str, started: float) -> str:
        settings = asdict(self._config)
        settings["tenant_weights"] = [[self._name(tenant), weight] for tenant, weight in self._config.tenant_weights]
        return _line({"record": FORMAT, "chairlift": version, "model": model, "started": started, "engine": settings})

    def step(self, step: Step) -> Iterator[str]:
        """The commands that came with the step, and the step itself."""
        yield from (_line(self._command(command)) for command in step.taken)
        yield from (_line(self._command(command) | {"within": True}) for command in step.within)
        plan = step.plan
        fields: dict[str, Any] = {"step": plan.step, "now": step.now, "elapsed_s": step.elapsed_s}
        fields |= {"rows": len(plan.work), "tokens": plan.tokens, "plan": digest(plan)}
        rare = {"drawn": dict(self._drawn(step.outputs)), "failed": step.failed, "raised": step.raised, "held": plan.held}
        fields |= {name: value for name, value in rare.items() if value}
        yield _line(fields | ({} if step.launching is None else {"launching": step.launching}))

    def _command(self, command: Told) -> dict[str, Any]:
        if isinstance(command, End):
            return {"end": command.choice, "finish": command.finish}
        request, stopping = command.request, command.request.stopping
        marks = _Marks(self._config.block_size, blake2b(key=self._key, digest_size=4))
        fields = {"submit": request.id, "arrival": request.arrival, "tokens": len(request.prompt)}
        fields |= {"marks": _hexadecimal(marks.of(request.prompt)), "max_tokens": stopping.max_tokens}
        self._marked |= {choice: marks.copy() for choice in choice_ids(request)}
        rare = {
            "samples": request.samples if request.samples > 1 else None,
            "min_tokens": stopping.min_tokens,
            "eos": bool(stopping.eos_ids),
            "stop": bool(stopping.stop_ids),
            "priority": request.priority,
            "tenant": self._name(request.tenant),
            "ttft_target_s": request.ttft_target_s,
            "salt": self._name(request.cache_salt),
            "limits": {name: value for name, value in asdict(request.limits).items() if value is not None},
        }
        return fields | {name: value for name, value in rare.items() if value}

    def _drawn(self, outputs: Iterable[Output]) -> Iterator[tuple[str, int]]:
        for output in outputs:
            marks = self._marked[output.seq_id].of(output.tokens)
            if output.finish is not None:
                del self._marked[output.seq_id]
            if output.tokens and output.finish == "stop":
                yield output.seq_id, EOS if output.stop_reason is None else STOP
            elif marks:
                yield output.seq_id, marks[-1]

    def _name(self, name: str) -> str:
        """No name stays none."""
        return name and blake2b(name.encode(), key=self._key, digest_size=NAME_BYTES).hexdigest()


class _Marks:
    """The marks of one sequence: at the last two tokens of every block a digest of all tokens up to there.

    Two, as one alone would be too short to tell all blocks apart that follow the same one.
    """

    def __init__(self, block_size: int, state: blake2b, length: int = 0, fresh: Iterable[int] = ()) -> None:
        self._size = block_size
        self._state = state
        self._length = length
        self._fresh = array("q", fresh)
        """Tokens since the last mark, which the state has not seen yet."""

    def copy(self) -> "_Marks":
        """For a sequence that goes its own way from here."""
        return _Marks(self._size, self._state.copy(), self._length, self._fresh)

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The marks at these tokens, which follow those that it was told before."""
        marks: list[int] = []
        start = 0
        while start < len(tokens):
            part = tokens[start : start + (self._size - 1 - self._length % self._size or 1)]  # up to the next that is marked
            self._fresh.extend(part)
            self._length += len(part)
            start += len(part)
            if _is_marked(self._length - 1, self._size):
                marks.append(self._mark())
        return marks

    def _mark(self) -> int:
        self._state.update(self._fresh.tobytes())
        del self._fresh[:]
        return int.from_bytes(self._state.digest(), "little") >> (32 - MARK_BITS)


def _is_marked(position: int, block_size: int) -> bool:
    return position % block_size >= block_size - 2


def _hexadecimal(marks: Iterable[int]) -> str:
    return "".join(f"{mark:08x}" for mark in marks)


def _line(fields: Mapping[str, Any]) -> str:
    """Numbers are written so that the very same are read again."""
    return json.dumps(fields, separators=(",", ":"))


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


BROKEN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What Python says of a field that is missing, or is not what it should be."""


def read(lines: Iterable[str]) -> tuple[Header, Iterator[Turn]]:
    """What a record holds, as its lines come. A last line without an end was cut off and is passed over.

    Raises RecordError with the number of a line that is not as it should be: at once for the first, later for others.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, None)
    if first is None:
        raise RecordError("the record is empty")
    header = _header(_fields(*first))
    return header, _turns(numbered, header.config)


def _turns(lines: Iterable[tuple[int, str]], config: EngineConfig) -> Iterator[Turn]:
    taken: list[Told] = []
    within: list[Told] = []
    for number, line in lines:
        if not line.endswith("\n") and len(line) <= MAX_LINE_CHARS:
            return
        fields = _fields(number, line)
        try:
            if "step" in fields:
                yield _turn(fields, tuple(taken), tuple(within))
                taken, within = [], []
            else:
                (within if fields.get("within") else taken).append(_command(fields, config))
        except (*BROKEN, ChairliftError) as error:
            raise RecordError(f"line {number} is no line of a record: {error!r:.200}") from None


def _fields(number: int, line: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_CHARS:
        raise RecordError(f"line {number} is longer than {MAX_LINE_CHARS:,} characters")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordError(f"line {number} is not JSON") from None
    if not isinstance(fields, dict):
        raise RecordError(f"line {number} is no line of a record")
    return fields  # pyright: ignore[reportUnknownVariableType]


def _header(fields: dict[str, Any]) -> Header:
    if "record" not in fields:
        raise RecordError("this is no record: its first line says nothing of one")
    if fields["record"] != FORMAT:
        raise RecordError(f"the record is of format {fields['record']}; only format {FORMAT} is known")
    try:
        config = _config(fields["engine"])
        return Header(str(fields["chairlift"]), str(fields["model"]), _number(fields["started"]), config)
    except (*BROKEN, ChairliftError) as error:
        raise RecordError(f"the record's engine cannot be built by this version: {error!s:.200}") from None


def _config(settings: dict[str, Any]) -> EngineConfig:
    """Every setting is of the kind that the engine was given: Python would take a number of places that is not whole."""
    known = {name: _setting(name, value) for name, value in settings.items() if name != "tenant_weights"}
    weights = tuple((str(tenant), _number(weight)) for tenant, weight in settings["tenant_weights"])
    return EngineConfig(**known, tenant_weights=weights)


def _setting(name: str, value: Any) -> Any:
    usual = getattr(DEFAULTS, name, None)
    if usual is None:
        return None if value is None else _number(value) if name.endswith("_s") else _whole(value)
    if isinstance(usual, float):
        return _number(value)
    if isinstance(usual, int) and not isinstance(usual, bool):
        return _whole(value, MAX_WHOLE if name.startswith("max_num_queued") else MAX_SIZE)
    if not isinstance(value, type(usual)):
        raise TypeError(f"{name} cannot be {value!r}")
    return value


def _whole(value: Any, most: int = MAX_WHOLE, *, least: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not (-most if least is None else least) <= value <= most:
        raise ValueError(f"{value!r} is no whole number of this kind")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _turn(fields: dict[str, Any], taken: tuple[Told, ...], within: tuple[Told, ...]) -> Turn:
    launching = fields.get("launching")
    return Turn(
        number=_whole(fields["step"]),
        now=_number(fields["now"]),
        elapsed_s=_number(fields["elapsed_s"]),
        taken=taken,
        within=within,
        drawn={str(name): _token(token) for name, token in fields.get("drawn", {}).items()},
        failed=tuple(map(str, fields.get("failed", ()))),
        raised=bool(fields.get("raised")),
        launching=None if launching is None else _whole(launching),
        rows=_whole(fields["rows"]),
        tokens=_whole(fields["tokens"]),
        plan=str(fields["plan"]),
    )


def _token(value: Any) -> int:
    if not isinstance(value, int) or not STOP <= value < 2**MARK_BITS:
        raise ValueError(f"{value!r} is no mark")
    return value


def _command(fields: dict[str, Any], config: EngineConfig) -> Told:
    if "end" in fields:
        if fields["finish"] not in get_args(Finish):
            raise ValueError(f"{fields['finish']!r} is no finish")
        return End(str(fields["end"]), fields["finish"])
    target_s = fields.get("ttft_target_s")
    return Submit(
        Request(
            id=str(fields["submit"]),
            prompt=_prompt(_whole(fields["tokens"], least=0), bytes.fromhex(fields["marks"]), config),
            stopping=Stopping(
                max_tokens=_whole(fields["max_tokens"], least=1),
                min_tokens=_whole(fields.get("min_tokens", 0), least=0),
                eos_ids=frozenset([EOS] if fields.get("eos") else []),
                stop_ids=frozenset([STOP] if fields.get("stop") else []),
            ),
            arrival=_number(fields["arrival"]),
            priority=_whole(fields.get("priority", 0)),
            tenant=str(fields.get("tenant", "")),
            ttft_target_s=None if target_s is None else _number(target_s),
            cache_salt=str(fields.get("salt", "")),
            limits=_limits(fields.get("limits", {})),
            samples=_whole(fields.get("samples", 1), MAX_SAMPLES, least=1),
        )
    )


def _limits(fields: dict[str, Any]) -> Limits:
    limits = Limits(**{name: _number(value) for name, value in fields.items()})
    if limits.stall_s is not None and limits.stall_s <= 0:
        raise ValueError("a stall limit is above 0")
    return limits


def _prompt(length: int, marks: bytes, config: EngineConfig) -> tuple[int, ...]:
    """Tokens that make the same blocks equal as the real ones did. ValueError if the marks are not those of such a prompt."""
    if length > config.max_model_len:
        raise ValueError("the prompt is too long")
    tokens = [PLAIN] * length
    places = [place for place in range(length) if _is_marked(place, config.block_size)]
    values = [_token(int.from_bytes(marks[start : start + 4], "big")) for start in range(0, len(marks), 4)]
    for place, value in zip(places, values, strict=True):
        tokens[place] = value
    return tuple(tokens)
