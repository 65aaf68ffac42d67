"""Whether everything computes on this device what it should: the tests marked `gpu`, or without pytest the checks in them.

Knows how they are run; what they are is told by tests/support/device_checks.py.
"""

import os
import sys
import time
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
        self._record, self._until = setting.record, setting.until
        self.passed = self.failed = 0

    @property
    def late(self) -> bool:
        """No further check may begin."""
        return time.monotonic() > self._until

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
        _alone(setting, tally)
    else:
        setting.record.fact("run", "pytest -m gpu")
        _by_pytest(setting, tally)
    setting.record.fact("checks", f"{tally.passed} passed, {tally.failed} failed")
    if tally.late:
        setting.record.failure("its time was over before all checks were done")


def _alone(setting: Setting, tally: _Tally) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from device_checks import checks, run

    for name, check in checks(setting.device).items():
        if tally.late:
            return
        try:
            run(check, setting.device)
        except Exception as error:  # noqa: BLE001  (whatever a kernel does: it is told, and others go on)
            tally.take(name, f"{type(error).__name__}: {error}".strip())
        else:
            tally.take(name, None)


def _by_pytest(setting: Setting, tally: _Tally) -> None:
    import pytest

    class Listener:
        """Hears of every test, and of what cannot even be collected."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed or (report.when == "call" and report.passed):
                tally.take(report.nodeid.rpartition("::")[2], _last_line(report) if report.failed else None)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tally.take(report.nodeid, _last_line(report))

        def pytest_runtest_teardown(self, item: Any) -> None:
            if tally.late:
                item.session.shouldstop = "its time is over"

    os.chdir(ROOT)
    ended = pytest.main(["-m", "gpu", "--tb=short", "-p", "no:cacheprovider", *SUITES], plugins=[Listener()])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not tally.late:
        setting.record.failure(f"pytest ended with {ended!r}")


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip()
