"""Whether everything computes on this device what it should: the tests marked `gpu`, or without pytest the checks in them.

Knows how they are run; what they are is told by tests/support/device_checks.py.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_check.setting import Setting

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("tests/gpu", "tests/execute/torch/test_on_device.py")
NEEDED = ("pytest", "hypothesis", "pytest_asyncio")
"""By the tests, or by how they are set up."""
MOST_TOLD = 20
"""After a fault of the device all checks fail alike."""


class _Tally:
    """Counts, and tells of the first failures and from time to time how far it is."""

    def __init__(self, setting: Setting) -> None:
        self._record = setting.record
        self.passed = self.failed = 0

    def take(self, name: str, fault: str | None) -> None:
        if fault is None:
            self.passed += 1
        else:
            self.failed += 1
            if self.failed <= MOST_TOLD:
                self._record.failure(f"{name}: {fault:.300}")
        if (self.passed + self.failed) % 25 == 0:
            self._record.progress(f"{self.passed} passed, {self.failed} failed so far")


def measure(setting: Setting) -> None:
    tally = _Tally(setting)
    missing = [name for name in NEEDED if find_spec(name) is None]
    os.environ["CHAIRLIFT_TEST_DEVICE"] = str(setting.device.on)
    if missing:
        setting.record.fact("run", f"without pytest: {', '.join(missing)} not installed")
        _alone(setting, tally.take)
    else:
        setting.record.fact("run", "pytest -m gpu")
        _by_pytest(setting, tally.take)
    setting.record.fact("checks", f"{tally.passed} passed, {tally.failed} failed")
    if tally.passed + tally.failed == 0:
        setting.record.failure("there were no checks")


def _alone(setting: Setting, take: Callable[[str, str | None], None]) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from device_checks import run_all

    run_all(setting.device, on_check=take)


def _by_pytest(setting: Setting, take: Callable[[str, str | None], None]) -> None:
    import pytest

    class Listener:
        """Hears of every test, and of what cannot even be collected."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed or (report.when == "call" and report.passed):
                take(report.nodeid.rpartition("::")[2], _last_line(report) if report.failed else None)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                take(report.nodeid, _last_line(report))

    os.chdir(ROOT)
    ended = pytest.main(["-m", "gpu", "--tb=short", "-p", "no:cacheprovider", *SUITES], plugins=[Listener()])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        setting.record.failure(f"pytest ended with {ended!r}")


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip()
