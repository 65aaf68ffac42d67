"""What a scheduling decision costs: `schedule` and `commit` with 64 running sequences of 1,000 tokens, without a model.

Run it alone on an idle machine: `python benchmarks/scheduler_cost.py`.
"""

import argparse
import statistics
import time

from chairlift.core.config import EngineConfig
from chairlift.core.types import Plan, Request, Result, Row, Sampling, Stopping
from chairlift.schedule.presets import preset
from chairlift.schedule.scheduler import Scheduler


def results(plan: Plan) -> Result:
    return Result(plan.step, tuple(Row(work.seq_id, (7,)) for work in plan.work if work.draws))


def timed_step(scheduler: Scheduler) -> tuple[float, Plan]:
    began = time.perf_counter()
    plan = scheduler.schedule(0.0)
    planned = time.perf_counter()
    result = results(plan)
    executed = time.perf_counter()
    scheduler.commit(plan, result)
    scheduler.drain()
    return planned - began + time.perf_counter() - executed, plan


def filled(options: argparse.Namespace, *, places: int, waiting: int) -> Scheduler:
    """A scheduler with `options.sequences` running, each past its prompt, and `waiting` in the queue."""
    answer = options.steps + 200  # nobody may end while it is measured
    context = options.prompt + answer
    config = EngineConfig(
        max_model_len=context,
        num_blocks=options.sequences * (context // 16 + 1),
        max_num_seqs=places,
        max_num_batched_tokens=4096,
    )
    scheduler = Scheduler(config, preset(config))
    for number in range(options.sequences + waiting):
        prompt = tuple(range(number, number + options.prompt))
        scheduler.add(Request(str(number), prompt, Stopping(answer), Sampling(temperature=0.0), float(number)))
    while timed_step(scheduler)[1].tokens != len(scheduler.running):
        pass
    return scheduler


def report(what: str, scheduler: Scheduler, steps: int) -> None:
    running = len(scheduler.running)
    times = sorted(timed_step(scheduler)[0] for _ in range(steps))
    median, p90 = statistics.median(times) * 1e3, times[int(len(times) * 0.9)] * 1e3
    print(f"{running} running, {what}: median {median:.3f} ms, p90 {p90:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    places = options.sequences
    report("nobody waits", filled(options, places=places, waiting=0), options.steps)
    report("100 wait for a place", filled(options, places=places, waiting=100), options.steps)
    report("100 wait for memory", filled(options, places=2 * places, waiting=100), options.steps)


if __name__ == "__main__":
    main()
