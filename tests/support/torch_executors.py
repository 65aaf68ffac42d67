"""Executors in PyTorch over small decoders, on the CPU unless a test asks for more."""

from dataclasses import replace

import torch
from executor_cases import CASE_BLOCK, CASE_BLOCKS

from chairlift.execute.torch.attention.backends import Attention
from chairlift.execute.torch.device import Recorder
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.options import Choice, resolve
from chairlift.execute.torch.parallel.group import ALONE, Group
from chairlift.models.description import Description, Weights

PLAIN_CHOICE = resolve("cpu", "float32", "reference")


def choice(dtype: str = "float32", *, device: str = "cpu", attention: str = "reference") -> Choice:
    return resolve(device, dtype, attention)


def torch_executor(
    description: Description,
    weights: Weights,
    *,
    num_blocks: int = CASE_BLOCKS,
    block_size: int = CASE_BLOCK,
    max_tokens: int = 512,
    max_rows: int = 16,
    num_host_blocks: int = 0,
    choice: Choice = PLAIN_CHOICE,
    attention: Attention | None = None,
    recorder: Recorder | None = None,
    group: Group = ALONE,
) -> TorchExecutor:
    """In float32 on the CPU, and with attention row by row, unless `choice` or `attention` says something else.

    If there is a `recorder`, it captures decode steps.
    """
    executor = TorchExecutor.load(
        description,
        weights,
        choice=replace(choice, eager=None) if recorder else choice,
        num_blocks=num_blocks,
        block_size=block_size,
        max_tokens=max_tokens,
        max_rows=max_rows,
        attention=attention,
        num_host_blocks=num_host_blocks,
        group=group,
    )
    if recorder:
        executor.capture(recorder)
    return executor


def one_thread() -> None:
    """More of them would only wait for each other: the tensors of tests are small."""
    torch.set_num_threads(1)
