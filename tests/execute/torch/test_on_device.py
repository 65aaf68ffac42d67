"""What only a GPU can do: steps that are captured by CUDA, and kernels that are compiled. CHAIRLIFT_TEST_DEVICE names one."""

import os

import numpy as np
import pytest
import torch
from captures import WritingRecorder
from in_flight import BLOCKS_EACH, SAMPLINGS, answers
from tiny_decoders import VARIANTS, random_tokens, random_weights, row
from torch_executors import torch_executor

from chairlift.execute.torch.device import Device
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.options import resolve
from chairlift.execute.torch.sizing import captured_bytes

DEVICE = Device.pick(os.environ.get("CHAIRLIFT_TEST_DEVICE", "cpu"))
DESCRIPTION = VARIANTS["everything"]
ROWS = 11

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not DEVICE.graphs, reason="CHAIRLIFT_TEST_DEVICE names no device that captures"),
]


def executor(*, eager: bool = False) -> TorchExecutor:
    chosen = resolve(os.environ["CHAIRLIFT_TEST_DEVICE"], "bfloat16", "triton", enforce_eager=eager)
    return torch_executor(DESCRIPTION, random_weights(DESCRIPTION), max_rows=ROWS, choice=chosen)


@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_a_captured_step_has_the_bits_of_the_same_step_launched_kernel_by_kernel(count: int) -> None:
    """Padded alike: other shapes may be added up in another order."""
    captured, launched = executor(), executor()
    captured.capture()
    launched.capture(WritingRecorder())
    prompts = [
        row(random_tokens(3 + at, seed=at), range(BLOCKS_EACH * at, BLOCKS_EACH * (at + 1)), seq_id=str(at))
        for at in range(ROWS)
    ]
    for one in (captured, launched):
        one.logits(prompts)
    for token in (5, 6):
        nexts = [row([token], work.blocks, seq_id=work.seq_id, start=work.end + token - 5) for work in prompts[:count]]
        np.testing.assert_array_equal(captured.logits(nexts), launched.logits(nexts))


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_those_of_steps_launched_kernel_by_kernel(depth: int) -> None:
    captured, launched = executor(), executor()
    captured.capture()
    launched.capture(WritingRecorder())
    prompts = [(SAMPLINGS[at % len(SAMPLINGS)], random_tokens(3 + at, seed=at)) for at in range(ROWS)]
    steps = [[(at, 20) for at in range(ROWS)], *([(at, 1) for at in range(left)] for left in (11, 9, 8, 5, 4, 3, 2, 1, 1))]
    expected = answers(launched, prompts, steps, depth=1)
    got = answers(captured, prompts, steps, depth=depth)
    assert [(text.tokens, text.told) for text in got] == [(text.tokens, text.told) for text in expected]


def test_after_warming_up_no_request_compiles_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    one = executor()
    one.warm_up()
    one.capture()
    compiled: list[str] = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **told: compiled.append(told["repr"]))
    prompts = [(SAMPLINGS[at % len(SAMPLINGS)], random_tokens(3 + at, seed=at)) for at in range(ROWS)]
    steps = [
        [(at, 20) for at in range(7)],
        [(at, 3) for at in range(ROWS)],
        *([(at, 1) for at in range(left)] for left in (11, 6, 1)),
    ]
    answers(one, prompts, steps, depth=2)
    assert compiled == []


def test_captured_steps_take_no_more_than_was_said() -> None:
    one = executor()
    one.warm_up()
    torch.cuda.empty_cache()
    before = DEVICE.free_bytes()
    one.capture()
    torch.cuda.empty_cache()
    after = DEVICE.free_bytes()
    assert before is not None
    assert after is not None
    assert before - after <= captured_bytes(DESCRIPTION, one._graphs.sizes, itemsize=2)
