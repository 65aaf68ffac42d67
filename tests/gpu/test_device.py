"""Everything that `device_checks` has, on one device. `scripts/gpu-check` runs these on a GPU."""

import os

import pytest
from device_checks import Check, checks, run

from chairlift.execute.torch.device import Device

DEVICE = Device.pick(os.environ.get("CHAIRLIFT_TEST_DEVICE", "cpu"))
CHECKS = checks(DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_it_holds(check: Check) -> None:
    run(check, DEVICE)
