"""Several choices of one request on real executors: what is copied is the same to the last bit, and so are the texts."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_executors import CPU_BLOCK, EXACT, cpu_executor
from engines import config
from tiny_decoders import PLAIN, VARIANTS, random_tokens, random_weights, row
from virtual import Ride, request

from chairlift.core.ports import Executor
from chairlift.core.types import Move, Plan, Request, Sampling, choice_ids
from chairlift.engine.core import EngineCore
from chairlift.execute.cpu.executor import CpuExecutor
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description

EVERYTHING = VARIANTS["everything"]
BLOCKS = 24
SETTINGS = config(block_size=CPU_BLOCK, num_blocks=BLOCKS, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=24)
LENGTH = 21
"""Of a prompt that ends within its second block."""


def asked(name: str = "a", *, samples: int, arrival: float = 0.0, seed: int = 5) -> Request:
    sampling = Sampling(seed=seed, repetition_penalty=1.2, frequency_penalty=0.3, top_k=40, logprobs=2)
    return request(name, random_tokens(LENGTH), 25, arrival=arrival, sampling=sampling, samples=samples)


def ridden(executor: Executor, *requests: Request, num_blocks: int = BLOCKS) -> Ride:
    ride = Ride(EngineCore(replace(SETTINGS, num_blocks=num_blocks), executor))
    ride.submit(*requests)
    ride.run()
    assert ride.free_again
    return ride


def texts(ride: Ride, name: str = "a", samples: int = 3) -> list[list[int]]:
    return [ride.tokens[choice] for choice in choice_ids(asked(name, samples=samples))]


def reference(description: Description) -> ReferenceExecutor:
    return ReferenceExecutor.load(description, random_weights(description), num_blocks=BLOCKS, block_size=CPU_BLOCK)


@pytest.mark.parametrize("description", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_both_executors_write_the_same_choices(description: Description) -> None:
    with cpu_executor(description, random_weights(description), num_blocks=BLOCKS) as executor:
        ours = ridden(executor, asked(samples=3))
    assert texts(ours) == texts(ridden(reference(description), asked(samples=3)))
    assert len({tuple(text) for text in texts(ours)}) == 3
    assert sum(len(step.plan.moves) for step in ours.steps) == 2


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "int8"])
def test_choices_are_the_same_alone_in_a_batch_and_after_a_preemption(kind: str) -> None:
    options = replace(EXACT, kv_cache_dtype=kind)
    with cpu_executor(PLAIN, random_weights(PLAIN), num_blocks=BLOCKS, options=options) as executor:
        alone = ridden(executor, asked(samples=1))
        three = ridden(executor, asked(samples=3))
        others = [asked(name, samples=2, arrival=1.0, seed=9) for name in "bc"]
        crowded = ridden(executor, asked(samples=3), *others)
        short = ridden(executor, asked(samples=3), *others, num_blocks=8)
    assert three.tokens["a"] == alone.tokens["a"]
    assert texts(crowded) == texts(short) == texts(three)
    assert texts(crowded, "b", 2) == texts(crowded, "c", 2) == texts(short, "b", 2)
    assert short.preemptions > 0


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize("block_size", [16, 32])
def test_a_copied_block_gives_the_logits_of_the_one_it_came_from(kind: str, block_size: int) -> None:
    options = replace(EXACT, kv_cache_dtype=kind)
    tokens = random_tokens(LENGTH + block_size)
    with cpu_executor(EVERYTHING, random_weights(EVERYTHING), block_size=block_size, options=options) as executor:
        check_copies(executor, tokens)


def test_a_copied_block_of_the_reference_gives_the_logits_of_the_one_it_came_from() -> None:
    check_copies(reference(EVERYTHING), random_tokens(LENGTH + CPU_BLOCK))


def check_copies(executor: CpuExecutor | ReferenceExecutor, tokens: list[int]) -> None:
    blocks, copied = [7, 2, 5], [11, 9, 3]
    executor.logits([row(tokens, blocks)])
    expected = executor.logits([row([1], blocks, start=len(tokens))])
    # Onwards from a block that is given a new owner in the same step: it is read before it is written.
    moves = [Move("copy", source, target) for source, target in zip(blocks, copied, strict=True)]
    moves.append(Move("copy", copied[0] + 1, blocks[0]))
    executor.launch(Plan(0, (), moves=tuple(moves)))
    assert executor.collect().rows == ()
    np.testing.assert_array_equal(executor.logits([row([1], copied, start=len(tokens))]), expected)
