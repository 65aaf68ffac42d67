"""One stage in a process of its own, so that neither a fault of the device nor a library that hangs takes the others along.

python -m gpu_check.stage decode --into found.jsonl --began 0 --until 60 [--dry-run]
"""

import argparse
import traceback
from importlib import import_module
from pathlib import Path

from gpu_check.records import Record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True, help="moments are those of time.monotonic")
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    record = Record(given.into, stage=given.stage, began=given.began)
    try:
        _run(given.stage, record, until=given.until, dry_run=given.dry_run)
    except Exception as error:  # noqa: BLE001  (it is told, and other stages go on)
        traceback.print_exc()
        record.failure(f"{type(error).__name__}: {error!s:.500}")
        return 1
    return 0


def _run(stage: str, record: Record, *, until: float, dry_run: bool) -> None:
    measured = import_module(f"gpu_check.{stage}")
    import torch

    from chairlift.core.errors import ConfigError
    from chairlift.execute.torch.device import Device

    try:
        device = Device.pick("cpu" if dry_run else "cuda")
    except ConfigError as error:
        record.fatal(f"{error}; --dry-run walks through everything on the CPU")
        return
    from gpu_check.setting import Setting
    from gpu_check.shapes import LLAMA_8B, TINY

    with device.active(), torch.no_grad():
        measured.measure(Setting(device, TINY if dry_run else LLAMA_8B, record, until))


if __name__ == "__main__":
    raise SystemExit(main())
