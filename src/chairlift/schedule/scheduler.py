"""Decides, at every step, which tokens of which requests are computed next, and in which blocks.

Two passes: who runs goes on, then who waits gets on; before them, some may have to make way for whoever is first of these.
`schedule` makes the decision and `commit` takes in what came of it; with two steps in flight the next decision comes before
that, and counts on what is still being drawn. Blocks are the business of its `Memory`, which nobody else has; sequences leave
through `_finish` for good and through `_preempt` for a while, and in no other way. It asks its policy all questions of taste,
and knows neither clock nor chance.
"""

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, PrefixIndex
from chairlift.core.config import EngineConfig
from chairlift.core.events import Admitted
from chairlift.core.types import (
    PENDING,
    TIMEOUT,
    Displaced,
    Draw,
    Finish,
    Held,
    Logprobs,
    Move,
    Output,
    Plan,
    Reason,
    Request,
    Result,
    Sequence,
    Snapshot,
    Standing,
    State,
    Work,
    choice_ids,
)
from chairlift.schedule import door, stopping
from chairlift.schedule.layouts import LAYOUTS
from chairlift.schedule.limits import TimeLimits
from chairlift.schedule.policy import Past, Policy
from chairlift.schedule.swapping import Stored, Swapping
from chairlift.schedule.trials import Kind, Trials

PROOF = Work("", 0, array("i", [0]), array("i"), pad=True)
"""The row of a step that must succeed if the executor is sound."""

_record = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
"""Makes a named tuple out of all its fields. Its class takes twice as long for the same, and two are made for every row."""

_rank = attrgetter("rank")

_LAST = slice(-1, None)
"""The last token of a sequence, as an array: a slice that is there already costs less than one that is made for every row."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """The rows of a plan that is to be committed, but for padding. `sequences` and `ends` are those of the rows that draw."""

    work: list[Work] = field(default_factory=list[Work])
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    ends: list[int] = field(default_factory=list[int])
    shared: dict[str, tuple[Draw, ...]] = field(default_factory=dict[str, tuple[Draw, ...]])
    """What is drawn by those of them that draw for followers as well."""
    silent: list[tuple[Sequence, int, int]] = field(default_factory=list[tuple[Sequence, int, int]])
    """Whose the other rows are, where these end, and how many that draw stand before each."""


class Scheduler:
    """The requests of one engine, from the door to their one terminal output."""

    def __init__(self, config: EngineConfig, policy: Policy, index: PrefixIndex) -> None:
        self.config = config
        layout = LAYOUTS[config.kv_layout](config, index)
        self._memory = Swapping(layout, BlockPool(config.num_host_blocks), block_size=config.block_size)
        self.pool = self._memory.pool
        self.index = index
        self.running: list[Sequence] = []
        """By rank. Whoever is here holds blocks for all tokens it has."""
        self._leading: dict[str, Sequence] = {}
        """Those of them whose followers will need places when the prompt is there."""
        self._policy = policy
        self._queue = policy.order
        self._limits = TimeLimits()
        self._trials = Trials()
        self._failure = ""
        """What the executor said when it last failed."""
        self._sequences: dict[str, Sequence] = {}
        self._step = 0
        self._count = 0
        self._ahead = config.depth > 1
        """Somebody goes on before his token is there."""
        self._flying: deque[_Flight] = deque()
        """Of each plan that is to be committed, in order."""
        self._landed: Plan | None = None
        """The usual step that was committed since policies were last told of anything."""
        self._decided_at = 0.0
        self._held: Held | None = None
        """Who was left waiting by the step that is being decided."""
        self._displaced: Displaced | None = None
        """Who made way in it."""
        self._closed: list[str] = []
        """Those that have ended, of which no plan has told yet."""
        self._finished: list[Sequence] = []
        self._outputs: list[Output] = []
        self._admitted: list[Admitted] = []
        self._put_back: list[str] = []
        self._starved = 0
        """Choices put back since policies were last told of anything."""
        self._blamed: list[Request] = []

    # ── requests come and go ──────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request) -> None:
        """Queues a request that has passed the door (`door.check`)."""
        assert request.prompt, "the door refuses empty prompts"
        assert len(request.prompt) + request.stopping.max_tokens <= door.longest(self.config), (
            "the door refuses what never fits"
        )
        assert self._sequences.keys().isdisjoint(choice_ids(request)), "the id of a request in flight is not given twice"
        choices = [Sequence(request, self._count + choice, choice) for choice in range(request.samples)]
        self._count += request.samples
        leader = choices[0]
        self._follow(leader, choices[1:])
        self._queue.push(leader)
        for sequence in choices:
            sequence.rank = self._queue.rank(sequence)
            self._sequences[sequence.id] = sequence
            self._limits.watch(sequence)

    def end(self, choice_id: str, finish: Finish, reason: str | None = None) -> None:
        """Ends a choice from outside. One that has ended already stays as it ended."""
        sequence = self._sequences.get(choice_id)
        if sequence is not None:
            _drop_pending(sequence)
            self._finish(sequence, finish, reason)

    # ── the step ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self, now: float) -> Plan:
        """The plan of the next step, after those have ended whose time is over. Counters advance here, before anything is
        computed. At depth 2 the plan before this one need not have been committed."""
        for sequence in self._limits.expired(now):
            self.end(sequence.id, "length", TIMEOUT)
        self._policy.observe(self._past(now))
        match self._trials.begin():
            case Kind.PROOF:
                planned = _Flight(), list[str](), [PROOF]
            case Kind.TRIAL:
                planned = self._trial(self._trials.suspect)
            case Kind.USUAL:
                return self._planned(*self._passes(now))
        self._held = self._first("gate", now)  # while one is tried alone, nobody else is let in
        self._displaced = None
        return self._planned(*planned)

    def _passes(self, now: float) -> tuple[_Flight, list[str], list[Work]]:
        """Rows of a usual step, who lost his blocks for it, and padding."""
        budget = self.config.max_num_batched_tokens
        self._displaced = self._make_way(now)
        displaced = () if self._displaced is None else self._displaced.seq_ids
        starved: list[str] = []
        flight = _Flight()
        budget -= self._go_on(flight, budget, starved, behind=self._somebody_fits(now))
        if starved:  # memory that was just taken from one is not given to another
            self._held = self._first("no_block", now)
        else:
            budget -= self._get_on(flight, budget, now, displaced)
        return flight, [*displaced, *starved], self._policy.gate.padding(budget)

    def _planned(self, flight: _Flight, preempted: list[str], padding: list[Work]) -> Plan:
        closed: tuple[str, ...] = ()
        moves: tuple[Move, ...] = ()
        work = (*flight.work, *padding)
        if work:  # one without work is neither launched nor committed
            moves = self._memory.moves()
            closed = tuple(self._closed)
            self._closed.clear()
            self._flying.append(flight)
        plan = Plan(self._step, work, tuple(preempted), closed, moves, self._held, self._displaced)
        self._step += 1
        return plan

    def commit(self, plan: Plan, result: Result) -> None:
        """Takes in the result: new tokens, full blocks into the index, endings. Who has ended meanwhile is passed over."""
        self._landed = plan if self._trials.usual else None  # what a trial takes teaches nothing about other steps
        flight = self._flying.popleft()
        if result.failed:
            self._fail_rows(flight, dict(result.failed))
        ended: set[Sequence] = set()
        forked: list[Sequence] = []
        drawn = zip(flight.sequences, flight.ends, *_columns(result, flight), strict=True)
        taken = 0
        for sequence, end, place in flight.silent:  # in the order of the plan: of equal blocks the first is kept
            forked += self._take_rows(flight, islice(drawn, place - taken), ended)
            taken = place
            self._enter(sequence, end)
        forked += self._take_rows(flight, drawn, ended)
        answered = [sequence for sequence in flight.sequences if sequence not in ended] if ended else flight.sequences
        answered += forked
        self._queue.answered(answered)
        self._limits.progress(answered)
        for sequence in forked:
            self._keep_if_it_fits(sequence)
        guilty = self._trials.passed(drew=bool(plan.work[0].draws))
        if guilty is not None:
            self._blamed.append(guilty.request)
            self._fail(guilty, self._failure)

    def drain(self) -> tuple[Output, ...]:
        """What is to be sent since this was last asked."""
        outputs = tuple(self._outputs)
        self._outputs.clear()
        return outputs

    def drain_admitted(self) -> tuple[Admitted, ...]:
        admitted = tuple(self._admitted)
        self._admitted.clear()
        return admitted

    def drain_put_back(self) -> tuple[str, ...]:
        put_back = tuple(self._put_back)
        self._put_back.clear()
        return put_back

    def drain_blamed(self) -> tuple[Request, ...]:
        blamed = tuple(self._blamed)
        self._blamed.clear()
        return blamed

    def wake_at(self) -> float | None:
        """When there may be something to do although no request came or went."""
        moments = (self._policy.gate.wake_at(self._queue, self.running), self._limits.wake_at())
        return min((moment for moment in moments if moment is not None), default=None)

    def snapshot(self) -> Snapshot:
        running = self._places()
        return Snapshot(
            running=running,
            waiting=len(self._sequences) - running,
            free_blocks=self.pool.free,
            total_blocks=self.pool.total,
            swapped=self._memory.away,
            free_host_blocks=self._memory.host.free,
            total_host_blocks=self._memory.host.total,
        )

    def standings(self) -> tuple[Standing, ...]:
        """Everyone in flight: who runs, then who waits, both in order."""
        standings = [_standing(one, sequence, None) for sequence in self.running for one in (sequence, *sequence.followers)]
        ahead = 0
        for position, sequence in enumerate(self._queue):
            ahead += sequence.places
            stored = self._memory.stored(sequence)
            standings += [_standing(one, sequence, position, ahead, stored) for one in (sequence, *sequence.followers)]
        return tuple(standings)

    @property
    def sequences(self) -> Iterable[Sequence]:
        """Everyone in flight, for checks."""
        return self._sequences.values()

    def _past(self, now: float) -> Past:
        """What happened since this was last asked.

        A step lasts from the decision before its result to the next one: that is what clients feel.
        """
        finished = tuple(self._finished)
        self._finished.clear()
        then, self._decided_at = self._decided_at, now
        plan, self._landed = self._landed, None
        if plan is None:
            return Past(None, 0.0, finished)
        made_way = () if plan.displaced is None else plan.displaced.seq_ids
        starved, self._starved = self._starved + len(plan.preempted) - len(made_way), 0
        return Past(plan, now - then, finished, starved)

    # ── when a step has failed ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def doubts(self) -> int:
        """Failures in a row that no request explains."""
        return self._trials.doubts

    def take_back(self, plans: Iterable[Plan], message: str) -> tuple[str, ...]:
        """The executor has failed at these plans, all that were in flight, and named nobody: nothing that it has written is
        trusted any more, and nothing that they were to draw will come.

        Who runs waits again and will be computed anew, those of the plans first, one at a time. Returns who that is.
        """
        self._flying.clear()
        self._landed = None  # how long a failure takes teaches nothing
        self._failure = message
        self._closed[:0] = [closed for plan in plans for closed in plan.closed]  # they may not have been heard
        for sequence in self._sequences.values():
            _drop_pending(sequence)
        waiting_again = tuple(sequence.id for sequence in self.running)
        for sequence in self.running[:]:
            self._preempt(sequence)
        self._memory.lose()
        planned = dict.fromkeys(work.seq_id for plan in plans for work in plan.work if not work.pad)
        self._trials.failed(self._sequences[seq_id] for seq_id in planned if seq_id in self._sequences)
        return waiting_again

    @property
    def tries(self) -> bool:
        """The last decision was to try somebody alone: the next one needs its result."""
        return not self._trials.usual

    def _trial(self, suspect: Sequence) -> tuple[_Flight, list[str], list[Work]]:
        """The suspect alone, so that only it can make the step fail. It has all the memory there is, if it needs it."""
        others = [other for other in self.running if other is not suspect]
        for other in others:
            self._preempt(other)
        if not suspect.running:
            self._admit(suspect, self._memory.match(suspect))
        count = min(suspect.missing, self.config.max_num_batched_tokens)
        flight = _Flight()
        self._row(flight, suspect, suspect.computed + count)
        return flight, [other.id for other in others], []

    # ── before the passes: who runs makes way for the more urgent ─────────────────────────────────────────────────────────

    def _make_way(self, now: float) -> Displaced | None:
        """Preempts those, and only as many, that whoever is first in the queue may displace and must displace to get on.

        He gets on in this very step. If all that he may displace would not be enough, nobody is preempted in vain.
        """
        urgent = self._policy.gate.next(self._queue, self.running, now) if self._policy.gate.evicts else None
        if urgent is None or self._would_fit(urgent, []):
            return None
        leaving = self._fewest(urgent, self._queue.yielding(urgent, self.running))
        for sequence in leaving:
            self._preempt(sequence, store=True)
        return Displaced(urgent.id, tuple(sequence.id for sequence in leaving)) if leaving else None

    def _fewest(self, urgent: Sequence, worst: list[Sequence]) -> list[Sequence]:
        """So many of these, from the first on, that it would fit if they left. Nobody if not even all of them are enough.

        Mostly one is, and to ask what many hold takes long: so one is tried first, then two, four and so on.
        """
        few, most = 0, min(1, len(worst))
        while most and not self._would_fit(urgent, worst[:most]):
            few, most = most, min(2 * most, len(worst))
            if few == most:
                return []
        between = range(few + 1, most)
        return worst[: few + 1 + bisect_left(between, True, key=lambda count: self._would_fit(urgent, worst[:count]))]

    def _would_fit(self, sequence: Sequence, leaving: list[Sequence]) -> bool:
        """There would be a place and memory for it if these left. If any do, others grow before it gets on in this step."""
        away = {other.id for other in leaving}
        staying = [other for other in self.running if other.id not in away] if away else self.running
        places = self._places() - sum(other.places for other in leaving) + sequence.places
        if places > self.config.max_num_seqs or not self._policy.gate.takes(sequence, staying):
            return False
        match = self._memory.match(sequence)
        need = self._memory.need(sequence, match, leaving)
        if leaving:
            growing = [other for other in staying if len(other.tokens) >= other.room]
            need += sum(self._memory.lacks(other, len(other.tokens) + 1) for other in growing)
        return self._policy.headroom.admits(sequence, need, self.pool, staying)

    # ── first pass: who runs goes on ──────────────────────────────────────────────────────────────────────────────────────

    def _go_on(self, flight: _Flight, budget: int, preempted: list[str], *, behind: bool) -> int:
        """Adds rows to `flight`, and to `preempted` whoever loses his blocks. Returns the tokens that were given."""
        beyond = 0
        work, sequences, ends, ahead = flight.work, flight.sequences, flight.ends, self._ahead
        for sequence, count in self._policy.split.share(self.running, budget, behind=behind):
            start = sequence.computed
            end = start + count
            if end <= sequence.room and sequence.draws:  # as `_row`, of which only this is left
                sequence.computed = end
                tokens = sequence.tokens
                work.append(_record(Work, (sequence.id, start, tokens[_LAST], sequence.blocks, sequence.draws, False)))
                sequences.append(sequence)
                ends.append(end)
                if ahead:
                    self._go_ahead(sequence, end)
            elif end <= sequence.room or self._make_room(sequence, end, flight, preempted):
                self._row(flight, sequence, end)
                beyond += count - 1
        return len(work) + beyond

    def _make_room(self, sequence: Sequence, tokens: int, flight: _Flight, preempted: list[str]) -> bool:
        """Gives the sequence the blocks for `tokens` in all. Preempts one of the worst that have no part in this step yet.

        That may be the sequence itself. It never is the first by rank: that one is served while all others can yield.
        """
        if not sequence.running:  # it has lost its blocks to one before it
            return False
        while self._memory.lacks(sequence, tokens) > self.pool.free:
            planned = {row.seq_id for row in flight.work}
            candidates = [other for other in self.running[1:] if other.id not in planned]
            assert candidates, "whoever is first by rank is served first, and fits when all others have yielded"
            # Whoever ends with the token that is being drawn for him loses nothing. At depth 1 there is nobody like that.
            ending = [other for other in candidates if not other.missing and not other.followers]
            victim = ending[0] if ending else self._queue.victim(candidates, self._memory.recomputation)
            self._preempt(victim, store=not ending)
            preempted.append(victim.id)
            if victim is sequence:
                return False
        self._memory.grow(sequence, tokens)
        return True

    # ── second pass: who waits gets on ────────────────────────────────────────────────────────────────────────────────────

    def _get_on(self, flight: _Flight, budget: int, now: float, displaced: tuple[str, ...]) -> int:
        """Admits while gate, places, budget and memory allow it. Returns the tokens that were given.

        The first who does not fit ends the pass: a small request does not overtake a big one that waits for memory. So does one
        that was `displaced` in this step: it may have a row in flight, whose result is not to be taken for that of another.
        """
        spent = 0
        while (sequence := self._candidate(now)) is not None:
            if sequence.id in displaced:
                self._held = Held("no_block", sequence.id)
                return spent
            match = self._memory.match(sequence)
            if not self._policy.split.starts(self._memory.missing(sequence, match), budget - spent):
                self._held = Held("budget", sequence.id)
                return spent
            if not self._fits(sequence, match):
                self._held = Held("no_block", sequence.id)
                return spent
            self._admit(sequence, match)
            count = self._policy.split.chunk(sequence.missing, budget - spent, behind=self._somebody_fits(now))
            self._row(flight, sequence, sequence.computed + count)
            spent += count
        self._held = self._first("no_place" if self._lacks_places(now) else "gate", now)
        return spent

    def _lacks_places(self, now: float) -> bool:
        """Rather than the gate, it is the number of places that keeps whoever is next from joining."""
        free = self.config.max_num_seqs - self._places()
        sequence = self._policy.gate.next(self._queue, self.running, now) if free > 0 else None
        return free <= 0 or (sequence is not None and sequence.places > free)

    def _first(self, why: Reason, now: float) -> Held | None:
        first = self._queue.peek(now)
        return None if first is None else Held(why, first.id)

    def _candidate(self, now: float) -> Sequence | None:
        """Who would join next if budget and memory allow it."""
        free = self.config.max_num_seqs - self._places()
        sequence = self._policy.gate.next(self._queue, self.running, now) if free > 0 else None
        if sequence is None or sequence.places > free:
            return None
        return sequence if self._policy.gate.takes(sequence, self.running) else None

    def _places(self) -> int:
        """Places that are taken, those of followers included."""
        kept = sum([len(leader.followers) for leader in self._leading.values()]) if self._leading else 0
        return len(self.running) + kept

    def _somebody_fits(self, now: float) -> bool:
        """A waiting request would be admitted now, if tokens were left for it."""
        sequence = self._candidate(now)
        return sequence is not None and self._fits(sequence, self._memory.match(sequence))

    def _admit(self, sequence: Sequence, match: Match) -> None:
        """Gives the sequence blocks for all tokens that it has, shared ones first."""
        self._queue.remove(sequence)
        insort(self.running, sequence, key=_rank)
        sequence.running = True
        if sequence.followers:
            self._leading[sequence.id] = sequence
        self._memory.seat(sequence, match)
        self._note_first_admission(sequence)

    def _fits(self, sequence: Sequence, match: Match) -> bool:
        """Memory allows for all tokens that the sequence has."""
        return self._policy.headroom.admits(sequence, self._memory.need(sequence, match), self.pool, self.running)

    def _note_first_admission(self, sequence: Sequence) -> None:
        """Hits of a resumed sequence are its own earlier work, and no news to anybody."""
        if sequence.started:
            return
        for one in (sequence, *sequence.followers):
            one.started = True
            one.cached = sequence.computed
        self._queue.started(sequence)
        self._admitted.append(Admitted(sequence.request, queried=sequence.prompt_len, cached=sequence.cached))

    # ── rows, tokens, ends ────────────────────────────────────────────────────────────────────────────────────────────────

    def _row(self, flight: _Flight, sequence: Sequence, end: int) -> None:
        """Adds the row of its next tokens up to `end`, which count as computed from now on."""
        tokens, start = sequence.tokens, sequence.computed
        sequence.computed = end
        # The row that reaches the last token draws: its logits are those of the next one.
        draws = () if end < len(tokens) else sequence.draws or _draws(sequence)
        flight.work.append(_record(Work, (sequence.id, start, tokens[start:end], sequence.blocks, draws, False)))
        if draws:
            flight.sequences.append(sequence)
            flight.ends.append(end)
        else:
            flight.silent.append((sequence, end, len(flight.sequences)))
        if len(draws) > 1:
            flight.shared[sequence.id] = draws
        if self._ahead and len(draws) == 1:
            self._go_ahead(sequence, end)
        _calm(sequence)

    def _go_ahead(self, sequence: Sequence, end: int) -> None:
        """It misses the token that is being drawn, unless it ends with that one for certain. Then it draws no more."""
        if end < sequence.most:
            sequence.tokens.append(PENDING)
        else:
            sequence.draws = ()

    def _take_rows(
        self,
        flight: _Flight,
        rows: Iterable[tuple[Sequence, int, tuple[int, ...], tuple[Logprobs, ...]]],
        ended: set[Sequence],
    ) -> list[Sequence]:
        """What rows have drawn, and where each ends. Returns who has forked; adds to `ended` who has ended meanwhile."""
        forked: list[Sequence] = []
        outputs, ahead = self._outputs, self._ahead
        for sequence, end, tokens, logprobs in rows:
            # Nearly all rows are calm, and of these nothing is asked that is known already.
            if end < sequence.calm_until and tokens[0] not in sequence.ends:
                if ahead:
                    sequence.tokens[end] = tokens[0]
                else:
                    sequence.tokens.append(tokens[0])
                outputs.append(_record(Output, (sequence.id, tokens, None, None, sequence.cached, logprobs)))
            elif sequence.finish is None:
                forked += self._take_in(sequence, end, flight.shared.get(sequence.id), tokens, logprobs)
            else:
                ended.add(sequence)
        return forked

    def _take_in(
        self,
        sequence: Sequence,
        end: int,
        shared: tuple[Draw, ...] | None,
        drawn: tuple[int, ...],
        logprobs: tuple[Logprobs, ...],
    ) -> list[Sequence]:
        """Takes in the tokens of a row that may be of any kind. Returns the followers who go their own ways from now on."""
        self._enter(sequence, end)
        if shared is not None:
            return self._draw(sequence, end, shared, drawn, logprobs)
        self._append(sequence, end, drawn, logprobs)
        return []

    def _enter(self, sequence: Sequence, end: int) -> None:
        """Blocks that are full now are known from now on. Whoever had to make way meanwhile has no blocks any more."""
        if end >= sequence.full_at and sequence.running:
            self._memory.enter(sequence, end)
            _calm(sequence)

    def _fail_rows(self, flight: _Flight, messages: dict[str, str]) -> None:
        """The executor could not compute these. Who has ended meanwhile stays as he ended."""
        for sequence in (*flight.sequences, *(sequence for sequence, *_ in flight.silent)):
            if sequence.id in messages and sequence.finish is None:
                self._memory.distrust(sequence)
                self._fail(sequence, messages[sequence.id])

    def _draw(
        self,
        sequence: Sequence,
        place: int,
        draws: tuple[Draw, ...],
        tokens: tuple[int, ...],
        logprobs: tuple[Logprobs, ...],
    ) -> list[Sequence]:
        """Takes in the tokens of a row: its own first, then those of its followers, who go their own ways now. Returns them."""
        followers = self._fork(sequence) if sequence.followers else []
        drawn = {draw.choice: slice(i, i + 1) for i, draw in enumerate(draws)}
        for one in (sequence, *followers):
            its = drawn[one.choice]
            self._append(one, place, tokens[its], logprobs[its])
        return followers

    def _fork(self, leader: Sequence) -> list[Sequence]:
        """The prompt is computed: its followers share it, and run. Their places were kept for them."""
        followers, leader.followers = leader.followers, []
        self._leading.pop(leader.id, None)
        for follower in followers:
            follower.leader = None
            follower.running = True
            if leader.running:  # otherwise it had to make way meanwhile, and there is nothing to share
                self._memory.fork(leader, follower)
            insort(self.running, follower, key=_rank)
        return followers

    def _keep_if_it_fits(self, sequence: Sequence) -> None:
        """One that has just been forked goes on if memory allows for it, as for anybody who gets on; otherwise it waits."""
        if sequence.running:
            others = [other for other in self.running if other is not sequence]
            if not sequence.blocks or not self._policy.headroom.admits(sequence, 0, self.pool, others):
                self._preempt(sequence)
                self._put_back.append(sequence.id)
                self._starved += 1

    def _append(self, sequence: Sequence, place: int, drawn: tuple[int, ...], logprobs: tuple[Logprobs, ...]) -> None:
        """The one token that was drawn gets its place, if it does not have it already."""
        [token], tokens = drawn, sequence.tokens
        if place < len(tokens):
            tokens[place] = token
        else:
            tokens.append(token)
        ending = stopping.ending(sequence, token, place) if place >= sequence.most or token in sequence.ends else None
        if ending is None:
            self._outputs.append(_record(Output, (sequence.id, drawn, None, None, sequence.cached, logprobs)))
        else:
            _cut(sequence, place + 1)
            self._finish(sequence, ending[0], ending[1], tokens=drawn, logprobs=logprobs)

    def _preempt(self, sequence: Sequence, *, store: bool = False) -> None:
        """Puts a running sequence back into the queue. It keeps its tokens, and will compute them again unless they are stored.

        They are not after a failure, as nothing is trusted then; nor of one that has just been forked, as its leader has them.
        """
        if store:
            self._memory.store(sequence)
        sequence.put_back_at = len(sequence.tokens)
        self._get_off(sequence)
        self._queue.push(sequence)

    def _get_off(self, sequence: Sequence) -> None:
        del self.running[bisect_left(self.running, sequence.rank, key=_rank)]
        self._leading.pop(sequence.id, None)
        sequence.running = False
        sequence.draws, sequence.calm_until = (), 0
        self._memory.release(sequence)

    def _finish(
        self,
        sequence: Sequence,
        finish: Finish,
        reason: int | str | None = None,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
    ) -> None:
        """The one way out: frees everything that the sequence holds, and answers."""
        sequence.finish = finish  # first, so that the queue knows it for one that does not get on
        if sequence.running:
            self._get_off(sequence)
        elif sequence.leader is not None:
            self._unfollow(sequence, sequence.leader)
        else:
            self._queue.remove(sequence)
            self._memory.drop(sequence)
        if sequence.followers:
            self._succeed(sequence)
        self._limits.forget(sequence)
        del self._sequences[sequence.id]
        self._closed.append(sequence.id)
        self._finished.append(sequence)
        self._outputs.append(Output(sequence.id, tokens, finish, reason, sequence.cached, logprobs))

    def _fail(self, sequence: Sequence, message: str) -> None:
        """What is wrong with a prompt is wrong with it for all who follow. One that has ended already stays as it ended."""
        for one in (*sequence.followers, sequence):
            self.end(one.id, "error", message)

    def _succeed(self, leader: Sequence) -> None:
        """It ends before its prompt is computed: the first of its followers begins in its place, and leads the others."""
        heir, *others = leader.followers
        leader.followers = []
        heir.leader = None
        self._follow(heir, others)
        self._queue.push(heir)

    def _unfollow(self, follower: Sequence, leader: Sequence) -> None:
        leader.followers.remove(follower)
        if not leader.followers:
            self._leading.pop(leader.id, None)

    def _follow(self, leader: Sequence, followers: list[Sequence]) -> None:
        leader.followers = followers
        for follower in followers:
            follower.leader = leader


def _drop_pending(sequence: Sequence) -> None:
    """What is being drawn for it will never be taken in."""
    _cut(sequence, len(sequence.tokens) - sequence.pending)


def _cut(sequence: Sequence, length: int) -> None:
    """Makes new tokens of the first ones: the old ones may be the history of a draw in flight, which stays as it is."""
    if length < len(sequence.tokens):
        sequence.tokens, sequence.draws, sequence.calm_until = sequence.tokens[:length], (), 0


def _calm(sequence: Sequence) -> None:
    """Says how long nothing can happen to it but one more token in each step, if it draws like that already."""
    if sequence.draws:
        sequence.calm_until = min(sequence.full_at, sequence.most)


def _columns(result: Result, flight: _Flight) -> tuple[Iterable[tuple[int, ...]], Iterable[tuple[Logprobs, ...]]]:
    """What was drawn, in the order of the plan; nothing for rows that have failed. Mostly they come in this order already."""
    planned = tuple([sequence.id for sequence in flight.sequences])
    ids, tokens, logprobs = zip(*result.rows, strict=True) if result.rows else ((), (), ())
    if ids == planned:
        return tokens, logprobs
    rows = dict.fromkeys(planned, ((), ())) if result.failed else {}
    rows |= zip(ids, zip(tokens, logprobs, strict=True), strict=True)
    return [rows[seq_id][0] for seq_id in planned], [rows[seq_id][1] for seq_id in planned]


def _draws(sequence: Sequence) -> tuple[Draw, ...]:
    """For itself first, then for those that follow it."""
    request = sequence.request
    banned = stopping.banned(request.stopping, sequence.generated)
    # The tokens themselves and no copy: they only grow, and a row says how many of them its draws look at.
    own = Draw(sequence.choice, request.sampling, banned, sequence.tokens, sequence.prompt_len)
    draws = (own, *(own._replace(choice=follower.choice) for follower in sequence.followers))
    if not banned and not sequence.followers:
        sequence.draws = draws
    return draws


def _standing(
    sequence: Sequence, leader: Sequence, position: int | None, ahead: int = 0, stored: Stored | None = None
) -> Standing:
    held = stored if stored is not None and sequence is leader else sequence
    return Standing(
        sequence.id,
        _state(leader) if stored is None else "swapped",
        position,
        sequence.prompt_len,
        sequence.generated - sequence.pending,
        held.computed,
        len(held.blocks),
        ahead,
    )


def _state(sequence: Sequence) -> State:
    if not sequence.running:
        return "preempted" if sequence.started else "queued"
    # None is missing while the last of them is being computed.
    return "decode" if sequence.generated > sequence.pending and sequence.missing <= 1 else "prefill"
