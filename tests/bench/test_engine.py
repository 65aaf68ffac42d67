"""Figures of an engine whose executor takes as long as it is told to, on a clock that only it turns."""

from dataclasses import dataclass, replace

import pytest
from engines import config
from executors import ShadowExecutor, hashed

from chairlift.bench.engine import Phase, Run, Subject, Workload, measure, rows, settings
from chairlift.core.config import EngineConfig
from chairlift.core.costs import Cost, LayerCost, Limits, ModelCost
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.core.types import Plan, Result

COST = ModelCost(body_bytes=1000, head_bytes=0, token_bytes=0, token_operations=70, draw_operations=0, layers=())
LIMITS = Limits(read_bytes_per_s=10_000.0, int8_ops_per_s=1_000.0)
BEFORE_S, AFTER_S = 0.25, 0.5


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class TimedExecutor:
    """A second for each token of a step that has prompts, half a second for one of next tokens, and a hand-over before and
    after. `faults` are the plans that fail, or are interrupted, by their place.
    """

    threads = 1
    isa = None

    def __init__(self, engine: EngineConfig, clock: Clock, *, cost: ModelCost = COST, fault: int | None = None) -> None:
        self.shadow = ShadowExecutor(engine.num_blocks, engine.block_size, hashed(50))
        self.computed = (0.0, 0.0)
        self.cost = cost
        self._clock = clock
        self._fault = fault

    def launch(self, plan: Plan) -> None:
        self._clock.now += BEFORE_S
        began = self._clock.now
        prompts = any(len(work.tokens) > 1 for work in plan.work)
        self._clock.now += plan.tokens if prompts else 0.5
        self.computed = (began, self._clock.now)
        self._clock.now += AFTER_S
        self.shadow.launch(plan)

    def collect(self) -> Result:
        if len(self.shadow.plans) == self._fault:
            plan = self.shadow.plans[-1]
            return Result(plan.step, (), tuple((work.seq_id, "too hot") for work in plan.work))
        return self.shadow.collect()

    def limits(self) -> Limits:
        return LIMITS

    def close(self) -> None: ...


def measured(workload: Workload, *, cost: ModelCost = COST, fault: int | None = None) -> tuple[list[Run], TimedExecutor]:
    clock, engine = Clock(), settings(config(), workload)
    executor = TimedExecutor(engine, clock, cost=cost, fault=fault)
    return list(measure(Subject(engine, executor, executor, 50), workload, clock=clock)), executor


class TestPhases:
    def test_prefill_is_until_every_row_has_its_first_token(self) -> None:
        (run,), _ = measured(Workload((3,), input_len=10, output_len=5))
        # 30 tokens in steps of at most 16: two steps
        assert run.prefill == Phase(30, (16.75, 14.75), (0.75,), (Cost(1000, 16 * 70), Cost(1000, 14 * 70)))

    def test_decode_is_the_rest(self) -> None:
        (run,), _ = measured(Workload((3,), input_len=10, output_len=5))
        assert run.decode == Phase(12, (1.25,) * 4, (0.75,) * 3, (Cost(1000, 3 * 70),) * 4)

    def test_long_prompts_do_not_let_others_go_on(self) -> None:
        _, executor = measured(Workload((4,), input_len=40, output_len=3))
        for plan in executor.shadow.plans:
            assert len({len(work.tokens) > 1 for work in plan.work}) == 1

    def test_prompts_of_one_token(self) -> None:
        (run,), _ = measured(Workload((2,), input_len=1, output_len=3))
        assert (run.prefill.tokens, len(run.prefill.step_s)) == (2, 1)
        assert (run.decode.tokens, len(run.decode.step_s)) == (4, 2)

    def test_with_two_steps_in_flight_the_same_tokens_are_counted(self) -> None:
        workload = Workload((2, 1), input_len=40, output_len=5)
        clock, engine = Clock(), replace(settings(config(), workload), depth=2)
        executor = TimedExecutor(engine, clock)
        runs = list(measure(Subject(engine, executor, executor, 50), workload, clock=clock))
        assert [(run.batch, run.prefill.tokens, run.decode.tokens) for run in runs] == [(2, 80, 8), (1, 40, 4)]
        assert [len(run.decode.step_s) for run in runs] == [4, 4]


class TestOrder:
    def test_rounds_go_through_all_sizes(self) -> None:
        runs, _ = measured(Workload((1, 2), input_len=4, output_len=2, rounds=2))
        assert [(run.round, run.batch) for run in runs] == [(1, 1), (1, 2), (2, 1), (2, 2)]

    def test_a_short_batch_of_the_largest_size_goes_before(self) -> None:
        _, executor = measured(Workload((1, 2), input_len=100, output_len=9))
        plans = executor.shadow.plans
        first = next(place for place, plan in enumerate(plans) if any(work.start >= 40 for work in plan.work))
        assert {work.seq_id for plan in plans[:first] for work in plan.work} == {"0", "1"}

    def test_every_computed_token_is_told(self) -> None:
        told: list[int] = []
        workload = Workload((1, 3), input_len=9, output_len=4, rounds=2)
        clock, engine = Clock(), settings(config(), workload)
        executor = TimedExecutor(engine, clock)
        list(measure(Subject(engine, executor, executor, 50), workload, clock=clock, on_tokens=told.append))
        assert sum(told) == workload.tokens

    def test_prompts_are_the_same_every_time(self) -> None:
        def prompts(seed: int) -> list[list[int]]:
            _, executor = measured(Workload((2,), input_len=5, output_len=2, seed=seed))
            return [list(work.tokens) for plan in executor.shadow.plans for work in plan.work]

        assert prompts(1) == prompts(1) != prompts(2)


class TestRows:
    def test_rates_times_and_shares(self) -> None:
        workload = Workload((3,), input_len=10, output_len=5)
        runs, _ = measured(workload)
        (row,) = rows(runs, workload, LIMITS)
        assert (row.batch, row.input_len, row.output_len) == (3, 10, 5)
        assert row.prefill_tokens_per_s == pytest.approx(30 / 31.5)
        assert row.decode_tokens_per_s == pytest.approx(12 / 5)
        assert row.decode_ms_per_step == pytest.approx(1250)
        assert row.handover_ms == pytest.approx(750)
        assert (row.bytes_per_step, row.operations_per_step) == (1000, 210)
        assert row.bandwidth_share == pytest.approx(1000 / 1.25 / 10_000)
        assert row.int8_share == pytest.approx(210 / 1.25 / 1_000)
        assert row.prefill_int8_share == pytest.approx(30 * 70 / 31.5 / 1_000)

    def test_bytes_are_those_of_the_mean_context(self) -> None:
        cost = ModelCost(0, 0, 0, 0, 0, (LayerCost(position_bytes=2, operations=0),))
        workload = Workload((2,), input_len=10, output_len=4)
        runs, _ = measured(workload, cost=cost)
        assert rows(runs, workload, None)[0].bytes_per_step == 2 * 2 * (12 + 1)  # contexts of 11, 12, 13, and one is written

    def test_medians_of_rounds(self) -> None:
        workload = Workload((1,), input_len=4, output_len=3, rounds=3)
        runs = [Run(n, 1, _phase(4, 1.0), _phase(2, time_s)) for n, time_s in enumerate((1.0, 5.0, 2.0), start=1)]
        (row,) = rows(runs, workload, None)
        assert (row.decode_tokens_per_s, row.decode_ms_per_step) == (1.0, 2000.0)
        assert [part["decode_tokens_per_s"] for part in row.rounds] == [2.0, 0.4, 1.0]

    def test_without_limits_there_are_no_shares(self) -> None:
        workload = Workload((1,), input_len=4, output_len=2)
        runs, _ = measured(workload)
        (row,) = rows(runs, workload, None)
        assert (row.bandwidth_share, row.int8_share, row.prefill_int8_share) == (None, None, None)

    def test_sizes_that_were_not_reached_have_none(self) -> None:
        workload = Workload((1, 2), input_len=4, output_len=2)
        runs, _ = measured(workload)
        assert [row.batch for row in rows(runs[:1], workload, None)] == [1]


def _phase(tokens: int, time_s: float) -> Phase:
    return Phase(tokens, (time_s,), (), (Cost(1, 1),))


class TestFaults:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"batches": ()}, "batch sizes must be at least 1"),
            ({"batches": (4, 0)}, "batch sizes must be at least 1"),
            ({"input_len": 0}, "prompts must have at least 1 token"),
            ({"output_len": 1}, "answers must have at least 2 tokens"),
            ({"rounds": 0}, "at least 1 round"),
        ],
    )
    def test_a_workload_that_measures_nothing_is_refused(self, changes: dict, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            Workload(**({"batches": (1,), "input_len": 4, "output_len": 2} | changes))

    def test_a_row_that_fails_ends_it_with_the_reason(self) -> None:
        with pytest.raises(ChairliftError, match="a row failed: too hot"):
            measured(Workload((2,), input_len=4, output_len=3), fault=2)

    def test_a_pool_that_is_too_small_is_not_measured(self) -> None:
        workload = Workload((4,), input_len=20, output_len=20)
        engine = config(num_blocks=36, preset="prefill-first", enable_prefix_caching=False)
        clock = Clock()
        executor = TimedExecutor(engine, clock)
        with pytest.raises(ConfigError, match="4 sequences of 40 tokens do not fit"):
            list(measure(Subject(engine, executor, executor, 50), workload, clock=clock))


@pytest.mark.parametrize("output_len", [2, 20])
@pytest.mark.parametrize("input_len", [1, 16, 1000])
@pytest.mark.parametrize("batch", [1, 3, 200])
def test_the_pool_holds_the_largest_batch_from_its_first_step_on(batch: int, input_len: int, output_len: int) -> None:
    workload = Workload((batch,), input_len=input_len, output_len=output_len)
    sized = settings(config(block_size=16, max_num_batched_tokens=64), workload)
    prompt = -(-input_len // 16)
    assert sized.num_blocks - batch * prompt >= max(batch - 1, 0.01 * sized.num_blocks)
    assert sized.num_blocks >= batch * -(-workload.context // 16)
    assert (sized.max_num_seqs, sized.max_model_len) == (batch, workload.context)
