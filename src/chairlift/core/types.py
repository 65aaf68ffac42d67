"""What flows between the layers: requests in, plans and results through the middle, outputs back.

Everything is a value. Only `Sequence` changes, and only the scheduler changes it. Token ids are plain integers, text is
unknown here. The records that a step makes for every row are named tuples, as they are built thousands of times a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Finish = Literal["stop", "length", "abort", "error"]
"""How a request ends: by itself, at its length, because its client left, or by a fault of ours."""


TIMEOUT = "timeout"
"""The stop reason of a request that ended at a limit of time: as "length", with what it had until then."""

CANCELLED = "cancelled"
"""The stop reason of an "abort" that somebody asked for by name: its client may still be there and reads what there is."""

MAX_TENANTS = 1024
"""So many tenants are kept apart. A tenant is a name that somebody from outside may choose."""

MAX_LOGPROBS = 20
"""The most tokens whose probabilities can be asked for beside that of the drawn one."""

PENDING = -1
"""Stands for a token that is still being drawn: by the step before, for the same sequence."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from the logits: biases, penalties, temperature, top-k, top-p and min-p, in this order.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. The noise of a draw depends on `seed`, the index of
    the choice and the position in the output, and on nothing else.

    `presence_penalty` and `frequency_penalty` (0: off) are for tokens of the output, once and for each time that they came;
    `repetition_penalty` (1: off, otherwise above 0) is for tokens of prompt and output. `logit_bias` has pairs of an id and
    what is added to its logit, each id once. With `logprobs` every token comes with its log probability and those of so many
    best ones, at most MAX_LOGPROBS; None asks for nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    @property
    def penalised(self) -> bool:
        """A draw depends on the tokens before it by more than the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a request ends by itself. Stop strings are not here: they belong to text, and the engine knows only tokens.

    `eos_ids` end it with no stop reason, `stop_ids` with the id as the reason; neither can be drawn before `min_tokens`.
    """

    max_tokens: int
    min_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request may take, by the engine's clock; None: as long as it needs.

    By `queue_until` it must have got on for the first time, by `finish_until` it must have ended (both moments, in seconds).
    `stall_s` is the longest time from one of its tokens to the next, above 0.
    """

    queue_until: float | None = None
    finish_until: float | None = None
    stall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for. `arrival` is in seconds of the engine's clock; `prompt` is never empty.

    Of two requests the one with the lower `priority` goes first. `tenant` is who shares the machine with other tenants. The
    first token is wanted `ttft_target_s` after arrival: a wish that orders may heed, and no limit. Prefix blocks are shared
    only between requests of equal `cache_salt`. `samples` answers are wanted: choices with ids of their own (`choice_id`).
    """

    id: str
    prompt: tuple[int, ...]
    stopping: Stopping
    sampling: Sampling = Sampling()
    arrival: float = 0.0
    priority: int = 0
    tenant: str = ""
    ttft_target_s: float | None = None
    cache_salt: str = ""
    limits: Limits = Limits()
    samples: int = 1


def choice_id(request_id: str, choice: int) -> str:
    """The engine's name for one choice of a request, counted from 0. The first one has the name of the request."""
    return request_id if choice == 0 else f"{request_id}#{choice}"


def choice_ids(request: Request) -> list[str]:
    """The names of all its choices, in order."""
    return [choice_id(request.id, choice) for choice in range(request.samples)]


class Sequence:
    """The scheduler's record of a choice: its tokens so far, and how many of them have keys and values in `blocks`.

    One counter and no phases: whatever `tokens` has beyond `computed` is missing, whether it is a prompt, a chunk of one, a
    new token, or everything after a preemption.

    The choices of a request have one prompt, which is computed once: by the first of them, whose `followers` the others are.
    They neither wait nor run, and hold nothing, until they have their first token; from then on each is on its own.
    """

    __slots__ = (
        "blocks",
        "cached",
        "calm_until",
        "choice",
        "computed",
        "draws",
        "ends",
        "finish",
        "followers",
        "full_at",
        "id",
        "indexed",
        "last_token_at",
        "leader",
        "most",
        "number",
        "place",
        "prompt_len",
        "put_back_at",
        "rank",
        "request",
        "room",
        "running",
        "started",
        "tokens",
    )

    def __init__(self, request: Request, number: int = 0, choice: int = 0) -> None:
        self.id = choice_id(request.id, choice)
        self.request = request
        self.choice = choice
        self.number = number
        """Its place in the order in which requests came; it decides where everything else is equal."""
        self.rank: tuple[float, ...] = ()
        """Its place among those that run, by the order of its engine. It never changes."""
        self.tokens = array("i", request.prompt)
        self.prompt_len = len(request.prompt)
        self.ends = request.stopping.eos_ids | request.stopping.stop_ids
        """Tokens that end it, unless it is too short."""
        self.most = self.prompt_len + request.stopping.max_tokens - 1
        """Tokens that may get keys and values: nothing is computed from the last one of an answer."""
        self.computed = 0
        self.blocks = array("i")
        """Never changed but replaced, as plans have them too."""
        self.room = 0
        """Up to so many tokens can be written into `blocks` without any more memory."""
        self.draws: tuple[Draw, ...] = ()
        """What every row of it asks for, once it draws in every step and may draw any token, and has no followers."""
        self.calm_until = 0
        """Rows that end before this place do nothing but draw one more token, unless that ends it: they fill no block."""
        self.cached = 0
        """Prompt tokens that the prefix index gave it when it was first admitted."""
        self.indexed = 0
        """Full blocks that stand in the prefix index; `place` is where the last of them stands in its tree."""
        self.full_at = 0
        """When so many tokens are computed, there may be one more."""
        self.place: int | str = request.cache_salt
        self.running = False
        """It is among those that steps are planned for, and holds blocks; otherwise it waits or has ended."""
        self.started = False
        """It has been admitted at least once."""
        self.put_back_at = 0
        """How many tokens it had when it last lost its blocks and went back to the queue."""
        self.last_token_at: float | None = None
        """When its last token was there, by the clock of the steps."""
        self.finish: Finish | None = None
        self.followers: list[Sequence] = []
        self.leader: Sequence | None = None
        """Who computes its prompt for it; it is among the followers of that one."""

    @property
    def places(self) -> int:
        """Places that it takes while it runs: followers will need theirs as soon as the prompt is there."""
        return 1 + len(self.followers)

    @property
    def missing(self) -> int:
        """Tokens without keys and values. The last one is always to be computed, so it is 0 only while the next is drawn."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens of the answer, those included that are still being drawn."""
        return len(self.tokens) - self.prompt_len

    @property
    def pending(self) -> int:
        """Tokens at the end, of one that has not ended, that are still being drawn but have their places already."""
        count = 0
        while count < self.generated and self.tokens[-1 - count] == PENDING:
            count += 1
        return count

    def __repr__(self) -> str:
        return f"Sequence({self.id!r}, {self.computed}/{len(self.tokens)} computed, {len(self.blocks)} blocks)"


class Draw(NamedTuple):
    """One token that is wanted from the last position of a row. `banned` ids must not be drawn.

    A row draws for its own sequence first, then for the choices that follow it, if there are any. Its `end` is the place of
    what is drawn, which so is token `end - prompt_len` of the output; a draw says nothing of that, and stays the same from
    step to step.

    `history` are the tokens of the sequence itself, which nobody but the scheduler changes, and which only ever grow behind
    the `end` that a draw looks at; None stands for no tokens. The last of these is PENDING where that of the row is, until it
    is known. `mask` says which ids are allowed at all: bit `id % 32` of unsigned 32-bit word `id // 32` ("I") is set; None
    allows all.
    """

    choice: int
    sampling: Sampling
    banned: frozenset[int] = frozenset()
    history: array[int] | None = None
    prompt_len: int = 0
    mask: array[int] | None = None


class Logprobs(NamedTuple):
    """How probable the model held a token, before anything was done to the logits.

    `chosen` is its natural logarithm of probability, `rank` its place among all tokens, from 1. `top` has the best ones as
    pairs of an id and a log probability, the best first. Of equal ones the lower id is the better.
    """

    chosen: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Work(NamedTuple):
    """One row of a step: compute `tokens` at positions `start`... of a sequence whose KV lies in `blocks`.

    The last of the tokens may be PENDING if the plan was launched while the one before it was in flight: then it is the token
    that the row of the same sequence drew there, by its only draw.

    A `pad` row is computed and dropped: it is what a padded batch wastes. It has no blocks, and attends to nothing before it.
    """

    seq_id: str
    start: int
    tokens: array[int]
    blocks: array[int]
    draws: tuple[Draw, ...] = ()
    pad: bool = False

    @property
    def end(self) -> int:
        """Behind its last token: how many tokens its sequence has so far, and the place of the next one."""
        return self.start + len(self.tokens)


def drawn_for(work: Work) -> list[str]:
    """The name of the choice that each draw of a row is for."""
    # The first draw is the row's own, so the rest of its name is that of the request.
    request_id = work.seq_id.removesuffix(choice_id("", work.draws[0].choice))
    return [choice_id(request_id, draw.choice) for draw in work.draws]


class Move(NamedTuple):
    """The keys and values of block `source` go to block `target`, all layers of them.

    Both are of the device in a "copy". A "store" goes from the device to a block of the host, a "load" back again.
    """

    kind: Literal["copy", "store", "load"]
    source: int
    target: int


Reason = Literal["no_block", "no_place", "budget", "gate", "urgent", "share", "behind"]
"""Why a request waits. The first of the queue does because

- no_block: memory is not enough for it, or was just taken from somebody who runs;
- no_place: as many run as may run;
- budget: the step's tokens are spent, or what is left of them is too little to begin with;
- gate: this way of batching lets nobody in at this moment.

All others wait because somebody is before them: who came later but is more urgent (urgent), or whose tenant has had less
(share), or for any other reason, most of all because he came earlier (behind).
"""


class Held(NamedTuple):
    """Who is first of those that still wait after a decision, and why."""

    reason: Reason
    seq_id: str


class Displaced(NamedTuple):
    """Who made way, in the step in which `by` gets on instead: it is more urgent, or has less than its tenant's share."""

    by: str
    seq_ids: tuple[str, ...]


class Plan(NamedTuple):
    """The decision of one step. It is self-contained: it can be logged, replayed, priced, or sent to another process.

    `moves` are done before the work, in their order: first the stores, then the copies, then the loads. None reads what another
    one has written, but for a load of what has just been stored.
    `preempted` lost their blocks in this step, those among them that were `displaced`; the executor may drop whatever it keeps
    for `closed`.
    """

    step: int
    work: tuple[Work, ...]
    preempted: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    held: Held | None = None
    displaced: Displaced | None = None

    @property
    def tokens(self) -> int:
        """All tokens that this step computes, padding included."""
        return sum(len(work.tokens) for work in self.work)


class Row(NamedTuple):
    """What the executor drew for one row of the plan: one token for each of its draws.

    `logprobs` has one entry for each token, or none if the draws asked for none: those of a row ask alike.
    """

    seq_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


class Result(NamedTuple):
    """The answer to a plan: a row for each work with draws, in any order. `failed` rows name what went wrong."""

    step: int
    rows: tuple[Row, ...]
    failed: tuple[tuple[str, str], ...] = ()
    elapsed_s: float = 0.0


class Output(NamedTuple):
    """What goes back to a client. The last one of a choice, and only the last, has a `finish`.

    `stop_reason` is the stop token that ended it, TIMEOUT, or the message of an error; `cached` counts prompt tokens that came
    out of the prefix index. `logprobs` has one entry for each token if the request asked for them.
    """

    seq_id: str
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    stop_reason: int | str | None = None
    cached: int = 0
    logprobs: tuple[Logprobs, ...] = ()


State = Literal["queued", "prefill", "decode", "preempted", "swapped"]
"""Where a request is, for people: the scheduler itself knows no phases. Whoever was preempted waits to go on, and so does
whoever was swapped, whose keys and values are in host memory meanwhile."""


class Standing(NamedTuple):
    """How far a choice has come. `position` is its place among all who wait, from 0, or None if it runs.

    One that follows another has the state and the position of that one. `ahead` are the places that have to become free until
    it gets on: those of all before it, its own, and of those that get on with it; 0 if it runs.
    `tokens` counts those of its answer; `computed` of prompt and answer have keys and values, which lie in `blocks` blocks:
    of the host if it is swapped, otherwise of the device.
    """

    id: str
    state: State
    position: int | None
    prompt_tokens: int
    tokens: int
    computed: int
    blocks: int
    ahead: int = 0


class Snapshot(NamedTuple):
    """The engine at one moment, for health checks, metrics and tests."""

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    swapped: int = 0
    """Of those that wait, whose keys and values are in host memory."""
    free_host_blocks: int = 0
    total_host_blocks: int = 0


TokenizerKind = Literal["json", "bpe", "sentencepiece"]


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Everything a model file says about its tokenizer. `models` fills it in, `text` builds the tokenizer from it.

    Kind `json` carries a whole `tokenizer.json` in `json`. The other two come out of GGUF metadata: `tokens` by id with their
    `types` (GGUF's: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), `merges` with the name `pre` of the
    pre-tokenizer for byte-level BPE, `scores` for SentencePiece.

    `add_bos` and `add_eos` are what the file says, or None if it says nothing. `templates` are chat templates by name; the one
    called "default" is used unless another is asked for. `eos_ids` are all tokens that end an answer.
    """

    kind: TokenizerKind
    json: str = ""
    tokens: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    pre: str = ""
    bos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
