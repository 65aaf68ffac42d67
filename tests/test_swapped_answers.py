"""Whoever is swapped writes what he would have written: on every executor, bit by bit where blocks are stored and loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from cpu_executors import EXACT, cpu_executor
from tiny_decoders import VARIANTS, random_tokens, random_weights, row
from virtual import Ride, request

from chairlift.core.config import EngineConfig
from chairlift.core.types import Move, Plan, Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute.reference import ReferenceExecutor

EVERYTHING = VARIANTS["everything"]
BLOCK = 16
CROWDED = EngineConfig(
    96, 8, block_size=BLOCK, max_num_seqs=6, max_num_batched_tokens=40, num_host_blocks=30, enable_prefix_caching=False
)
"""Memory for one of the longest and a little more."""

KINDS = ["reference", "reference, contiguous", "cpu f32", "cpu f16", "cpu int8", "cpu, contiguous"]
if find_spec("torch"):
    KINDS += ["torch"]


@contextmanager
def executor(kind: str, *, num_blocks: int, num_host_blocks: int) -> Iterator[Any]:
    weights = random_weights(EVERYTHING)
    sizes: dict[str, Any] = {"num_blocks": num_blocks, "block_size": BLOCK, "num_host_blocks": num_host_blocks}
    name, _, numbers = kind.replace(", contiguous", "").partition(" ")
    if name == "torch":
        from chairlift.execute.torch.executor import TorchExecutor
        from chairlift.execute.torch.options import resolve

        choice = resolve("cpu", "float32", "reference")
        yield TorchExecutor.load(EVERYTHING, weights, choice=choice, max_tokens=128, max_rows=6, **sizes)
        return
    sizes["contiguous"] = "contiguous" in kind
    if name == "reference":
        yield ReferenceExecutor.load(EVERYTHING, weights, **sizes)
        return
    with cpu_executor(EVERYTHING, weights, options=replace(EXACT, kv_cache_dtype=numbers or "f32"), **sizes) as made:
        yield made


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "contiguous" not in kind])
def test_blocks_come_back_to_the_bit(kind: str) -> None:
    """Into others than they were in, and after those were given to another."""
    tokens, blocks, others = random_tokens(45), [7, 2, 5], [2, 0, 3]
    with executor(kind, num_blocks=10, num_host_blocks=6) as made:
        made.logits([row(tokens, blocks)])
        expected = made.logits([row([1], blocks, start=45)])
        stores = [Move("store", source, target) for source, target in zip(blocks, [4, 0, 5], strict=True)]
        made.launch(Plan(0, (), moves=tuple(stores)))
        made.collect()
        made.logits([row(random_tokens(48, seed=9), blocks)])
        loads = [Move("load", source, target) for source, target in zip([4, 0, 5], others, strict=True)]
        made.launch(Plan(1, (), moves=tuple(loads)))
        made.collect()
        np.testing.assert_array_equal(made.logits([row([1], others, start=45)]), expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "contiguous" not in kind])
def test_a_step_stores_before_it_copies_and_before_it_loads(kind: str) -> None:
    """Each into a block that the one before has read, and all before the step computes."""
    first, second = random_tokens(16), random_tokens(16, seed=5)
    with executor(kind, num_blocks=4, num_host_blocks=2) as made:
        made.logits([row(first, [0]), row(second, [1], seq_id="b")])
        expected = [made.logits([row([1], [block, 3], start=16)]) for block in (0, 1)]
        moves = (Move("store", 0, 1), Move("copy", 1, 0), Move("load", 1, 2))
        made.launch(Plan(0, (row([1, 2, 3], [1], seq_id="c"),), moves=moves))
        made.collect()
        for block, logits in zip((2, 0), expected, strict=True):
            np.testing.assert_array_equal(made.logits([row([1], [block, 3], start=16)]), logits)


@pytest.mark.parametrize(("kind", "depth"), [*((kind, 1) for kind in KINDS), *((kind, 2) for kind in KINDS if kind == "torch")])
def test_a_crowd_writes_the_texts_of_those_who_never_yield(kind: str, depth: int) -> None:
    layout = "contiguous" if "contiguous" in kind else "paged"
    roomy = replace(CROWDED, num_blocks=40, num_host_blocks=0, kv_layout=layout)
    crowded = replace(CROWDED, kv_layout=layout, depth=depth)
    told = []
    for config in (roomy, crowded):
        with executor(kind, num_blocks=config.num_blocks, num_host_blocks=config.num_host_blocks) as made:
            going = Ride(EngineCore(config, made))
            for number in range(5):
                sampling = Sampling(temperature=0.8, seed=number)
                urgent = {"priority": -100 * number, "arrival": going.now}
                going.submit(request(str(number), random_tokens(5 * number + 9, seed=number), 40, sampling=sampling, **urgent))
                for _ in range(4):
                    going.step()
            going.run()
            assert going.free_again
        told.append(going)
    unhurried, swapped = told
    assert (unhurried.preemptions, swapped.swapped > 1) == (0, True)
    assert swapped.tokens == unhurried.tokens
