"""Whole answers by the executor in PyTorch: those of the reference, in batches that are preempted, forked and padded."""

from collections import Counter
from dataclasses import replace

import pytest
from engines import config
from executor_cases import CASE_BLOCK
from tiny_decoders import VARIANTS, random_tokens, random_weights
from torch_executors import PLAIN_CHOICE, torch_executor
from virtual import Ride, request

from chairlift.core.ports import Executor
from chairlift.core.types import Request, Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute.reference import ReferenceExecutor
from chairlift.schedule.presets import PRESETS

EVERYTHING = VARIANTS["everything"]
WEIGHTS = random_weights(EVERYTHING)
BLOCKS = 11
SETTINGS = {
    "block_size": CASE_BLOCK,
    "num_blocks": BLOCKS,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
}
DEPTHS = (1, 2)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "penalised": Sampling(temperature=0, repetition_penalty=1.3, logprobs=3),
    "drawn": Sampling(seed=5, presence_penalty=0.7, frequency_penalty=0.4, top_k=20, logprobs=0),
    "biased": Sampling(temperature=0.5, seed=6, logit_bias=((3, 4.0), (7, -100.0)), top_p=0.9, min_p=0.01),
}


def asked() -> list[Request]:
    return [
        request(name, random_tokens(20 + 5 * place, seed=place), 40, arrival=float(place), sampling=sampling)
        for place, (name, sampling) in enumerate(SAMPLINGS.items())
    ]


def ridden(executor: Executor, requests: list[Request], **settings: int | str) -> Ride:
    ride = Ride(EngineCore(config(**(SETTINGS | settings)), executor))
    ride.submit(*requests)
    ride.run()
    assert ride.free_again
    return ride


def ours(num_blocks: int = BLOCKS) -> Executor:
    return torch_executor(EVERYTHING, WEIGHTS, num_blocks=num_blocks, max_tokens=256, max_rows=4)


def reference(num_blocks: int = BLOCKS) -> Executor:
    return ReferenceExecutor.load(EVERYTHING, WEIGHTS, num_blocks=num_blocks, block_size=CASE_BLOCK)


@pytest.mark.parametrize("depth", DEPTHS)
def test_answers_are_those_of_the_reference(depth: int) -> None:
    ride = ridden(ours(), asked(), depth=depth)
    assert ride.preemptions > 0
    assert ride.tokens == ridden(reference(), asked()).tokens


def test_triton_between_the_matrix_products_gives_the_same_answers() -> None:
    """Few tokens, as its interpreter takes its time."""
    fused = torch_executor(EVERYTHING, WEIGHTS, num_blocks=24, choice=replace(PLAIN_CHOICE, fused=True))
    few = [replace(one, stopping=replace(one.stopping, max_tokens=2)) for one in asked()[1:3]]
    settings = {"num_blocks": 24, "max_num_batched_tokens": 256}
    assert ridden(fused, few, **settings).tokens == ridden(reference(24), few, **settings).tokens


@pytest.mark.parametrize("depth", DEPTHS)
def test_choices_of_one_prompt_are_those_of_the_reference(depth: int) -> None:
    several = [request("a", random_tokens(21), 25, sampling=SAMPLINGS["drawn"], samples=3)]
    ride = ridden(ours(24), several, num_blocks=24, depth=depth)
    assert sum(len(step.plan.moves) for step in ride.steps) == 2
    assert ride.tokens == ridden(reference(24), several, num_blocks=24).tokens
    assert len(ride.tokens) == 3


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_way_of_batching_gives_the_same_answers(preset: str, depth: int) -> None:
    ride = ridden(ours(24), asked(), preset=preset, num_blocks=24, max_num_batched_tokens=256, depth=depth)
    assert ride.tokens == ridden(reference(), asked()).tokens


def test_one_run_of_blocks_gives_the_same_answers() -> None:
    ride = ridden(ours(24), asked(), kv_layout="contiguous", num_blocks=24)
    assert ride.tokens == ridden(reference(), asked()).tokens


@pytest.mark.parametrize("depth", DEPTHS)
def test_everyone_ends_once(depth: int) -> None:
    ride = ridden(ours(), asked(), depth=depth)
    assert Counter(map(len, ride.endings.values())) == {1: len(SAMPLINGS)}
