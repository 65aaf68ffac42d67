"""What it costs to keep traces and to write a record, beside the decisions themselves: processor time, as a ratio.

All are measured in turns within the same run, without a model: 256 running requests, some of which end in every step, and
10,000 that wait. The record's cost comes in two parts: what its own thread works out, and what the engine waits for (handing
the step over). Run it alone: `python benchmarks/observing_cost.py`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

from chairlift.core.config import EngineConfig
from chairlift.core.events import Step, Submit
from chairlift.core.types import Plan, Request, Result, Row, Sampling, Stopping
from chairlift.engine.core import EngineCore
from chairlift.engine.tape import Writer
from chairlift.observe.metrics import Metrics
from chairlift.observe.trace import Traces


class Instant:
    """An executor that takes as good as no time."""

    def launch(self, plan: Plan) -> None:
        self._plan = plan

    def collect(self) -> Result:
        return Result(self._plan.step, tuple(Row(work.seq_id, (7,)) for work in self._plan.work if work.draws))

    def close(self) -> None: ...


def requests(prompt: int, answer: int) -> Iterator[Request]:
    number = 0
    while True:
        stopping = Stopping(answer // 2 + number * 7919 % answer)
        tokens = tuple(range(number, number + prompt))
        yield Request(str(number), tokens, stopping, Sampling(temperature=0.0), float(number), tenant=str(number % 4))
        number += 1


def timed(what: Callable[[], object]) -> float:
    began = time.process_time_ns()
    what()
    return (time.process_time_ns() - began) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--prompt", type=int, default=200, help="tokens")
    parser.add_argument("--answer", type=int, default=200, help="tokens, on average")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    config = EngineConfig(
        max_model_len=options.prompt + 2 * options.answer,
        num_blocks=options.running * (options.prompt + 2 * options.answer) // 16,
        max_num_seqs=options.running,
        max_num_batched_tokens=4096,
    )
    core, coming = EngineCore(config, Instant()), requests(options.prompt, options.answer)
    metrics, traces, writer = Metrics(), Traces(), Writer(config, key=b"a benchmark")
    steps: dict[str, list[float]] = {"step": [], "metrics": [], "traces": [], "record": []}
    core.inbox.extend(Submit(next(coming)) for _ in range(options.running + options.waiting))
    for number in range(options.steps + 100):
        seen: list[Step] = []
        took = {"step": timed(lambda: seen.append(core.step(float(number))))}  # noqa: B023
        step = seen[0]
        took["metrics"] = timed(lambda: metrics.on_step(step))  # noqa: B023
        took["traces"] = timed(lambda: traces.on_step(step))  # noqa: B023
        took["record"] = timed(lambda: list(writer.step(step)))  # noqa: B023
        core.inbox.extend(Submit(next(coming)) for output in step.outputs if output.finish)
        if number >= 100:  # all places are taken by now
            for name, micros in took.items():
                steps[name].append(micros)
    whole = statistics.mean(steps["step"])
    print(f"{len(core.scheduler.running)} running, {core.scheduler.snapshot().waiting} waiting, {options.steps} steps")
    for name, micros in steps.items():
        mean = statistics.mean(micros)
        print(f"{name}: mean {mean:.0f} us, median {statistics.median(micros):.0f} us, {100 * mean / whole:.1f} % of a step")


if __name__ == "__main__":
    main()
