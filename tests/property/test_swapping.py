"""A crowd that is always short of memory and of places, so that somebody is swapped in most examples: put away, found again in
part, loaded, ended while he is away, and lost with a step that failed.
"""

from typing import Any

from engines import NEXT, config, shadow
from executors import ShadowExecutor
from hypothesis import event, given, settings
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.core.config import EngineConfig
from chairlift.core.events import Step
from chairlift.core.types import Plan, Result, choice_ids
from chairlift.engine.core import EngineCore

MOST = 18

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda length, tail: [0, 1] * length + tail,
            st.integers(0, 6),
            st.lists(st.integers(0, 9), min_size=1, max_size=5),
        ),
        "priority": st.sampled_from([0, 0, 0, 1, 500]),
        "samples": st.sampled_from([1, 1, 1, 2, 3]),
    }
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), REQUESTS),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("break"), st.none()),
    ),
    min_size=8,
    max_size=30,
)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    size = draw(st.sampled_from([1, 2, 3, 4]))
    return config(
        block_size=size,
        num_blocks=36 // size + draw(st.integers(0, 3)),
        num_host_blocks=draw(st.sampled_from([24 // size, 200])),
        max_model_len=36,
        max_num_seqs=draw(st.integers(3, 5)),
        max_num_batched_tokens=draw(st.integers(8, 24)),
        enable_prefix_caching=draw(st.booleans()),
        kv_layout=draw(st.sampled_from(["paged", "paged", "paged", "contiguous"])),
        scheduling_policy=draw(st.sampled_from(["priority", "fair", "shortest", "prefix"])),
        depth=draw(st.sampled_from([1, 2])),
    )


class Brittle(Ride):
    """Does with a failed step what the engine's loop does."""

    def __init__(self, settings: EngineConfig) -> None:
        executor = shadow(settings)
        super().__init__(EngineCore(settings, Breaking(executor)))

    def step(self) -> Step:
        try:
            return super().step()
        except ValueError:
            failed = self.core.fail_step(self.now, "it broke")
            assert failed is not None
            for output in failed.outputs:
                self.take(output)
            return failed


class Breaking:
    """Raises once when it was told to, and drops all that is in flight.

    What the plan would have moved and written is then in part there, in part not.
    """

    def __init__(self, executor: ShadowExecutor) -> None:
        self.executor = executor
        self.broken = False

    def launch(self, plan: Plan) -> None:
        if self.broken and len(plan.work) > 1:  # never a trial, which would find an innocent one guilty
            self.broken = False
            self.executor.launch(plan._replace(moves=plan.moves[::2], work=plan.work[:1]))
            while self.executor._flights:
                self.executor.collect()
            raise ValueError("it broke")
        self.executor.launch(plan)

    def collect(self) -> Result:
        return self.executor.collect()

    def close(self) -> None: ...


@settings(max_examples=120, deadline=None)
@given(settled=configs(), acts=ACTS)
def test_swapping_changes_no_text_and_loses_no_block(settled: EngineConfig, acts: list[Any]):
    ride = Brittle(settled)
    executor = ride.core._executor
    assert isinstance(executor, Breaking)
    asked = {}
    left: set[str] = set()
    for kind, what in acts:
        if kind == "submit":
            one = request(str(len(asked)), what.pop("prompt"), MOST, arrival=ride.now, **what)
            asked |= {choice: (one, index) for index, choice in enumerate(choice_ids(one))}
            ride.submit(one)
        elif kind == "step":
            for _ in range(what):
                ride.step()
        elif kind == "break":
            executor.broken = True
        elif asked:
            names = [one.id for one in ride.core.scheduler.standings() if one.state == "swapped"] or sorted(asked)
            leaver = names[what % len(names)]
            if not ride.endings[leaver]:
                left.add(leaver)
                ride.end(leaver)
    ride.run()
    event(f"swapped: {ride.swapped > 0}")
    event(f"recomputed: {ride.preemptions > ride.swapped}")
    assert ride.free_again
    for name, (one, index) in asked.items():
        text = alone(one.prompt, index)
        written = tuple(ride.tokens[name])
        assert written == text[: len(written)]
        assert ride.endings[name] == (["abort"] if name in left else ["length"])
        assert name in left or written == text


def alone(prompt: tuple[int, ...], choice: int) -> tuple[int, ...]:
    """The text of a choice, computed without any engine."""
    out: list[int] = []
    while len(out) < MOST:
        out.append(NEXT((*prompt, *out)) + choice)
    return tuple(out)
