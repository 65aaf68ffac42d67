"""What machine this is, and what it does at best: how fast it copies memory, how fast it multiplies matrices."""

import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from chairlift.execute.torch.device import Device
from gpu_check.records import Figure, Record
from gpu_check.report import COPY, MATRIX
from gpu_check.setting import Setting

PACKAGES = ("torch", "triton", "transformers", "numpy", "flashinfer-python", "flash-attn", "kernels", "psutil")
REPEATS = 10
"""Of one operation in a run."""


def measure(setting: Setting) -> None:
    _facts(setting.record, setting.device)
    _copy(setting)
    _multiply(setting)


def _copy(setting: Setting) -> None:
    count = setting.sizes.copied_bytes
    source = torch.ones(count, dtype=torch.uint8, device=setting.device.on)
    target = torch.empty_like(source)
    _rate(setting, COPY, "GB/s, read and written", 2 * count / 1e9, lambda: target.copy_(source))


def _multiply(setting: Setting) -> None:
    wide, dtype = setting.sizes.matrix, setting.device.dtype("auto")
    setting.record.fact("matrices", f"{str(dtype).removeprefix('torch.')}, {wide} wide")
    left, right = (torch.randn(wide, wide, device=setting.device.on).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    _rate(setting, MATRIX, "Tops/s", 2 * wide**3 / 1e12, lambda: torch.matmul(left, right, out=product))


def _rate(setting: Setting, case: str, unit: str, amount: float, run: Callable[[], object]) -> None:
    """`amount` is what one run comes to."""

    def once() -> float:
        setting.device.settle()
        began = time.perf_counter()
        for _ in range(REPEATS):
            run()
        setting.device.settle()
        return amount * REPEATS / (time.perf_counter() - began)

    runs = setting.repeated(once, share=0.5)
    setting.record.figure(Figure(case, unit, statistics.median(runs), runs))


def _facts(record: Record, device: Device) -> None:
    record.fact("device", device.words)
    record.fact("python", platform.python_version())
    for package in PACKAGES:
        record.fact(package, _version(package))
    record.fact("processors", f"{torch.get_num_threads()} threads of {platform.machine()}")
    if device.capability is None:
        return
    of = torch.cuda.get_device_properties(device.on)
    record.fact("compute capability", ".".join(map(str, device.capability)))
    record.fact("multiprocessors", of.multi_processor_count)
    record.fact("memory", f"{of.total_memory / 2**30:.1f} GiB, of which {(device.free_bytes() or 0) / 2**30:.1f} are free")
    record.fact("CUDA of PyTorch", torch.version.cuda)
    record.fact("driver", _driver())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """As nvidia-smi tells it, if it is there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "unknown: nvidia-smi does not tell"
    return done.stdout.splitlines()[0].strip()
