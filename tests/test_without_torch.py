"""PyTorch is an extra: nothing of it is loaded unless it is asked for, and who asks in vain is told how to get it."""

import signal
import sys

import httpx
import pytest
from processes import END_S, chairlift

from chairlift.compose import check_options
from chairlift.core.errors import ConfigError
from chairlift.options import EngineOptions


def imported(line: str) -> str:
    """The package of a module out of what Python tells of its imports; "" for any other line."""
    return line.rpartition("|")[2].strip().partition(".")[0] if line.startswith("import time:") else ""


def test_a_server_on_the_cpu_never_loads_it() -> None:
    packages: set[str] = set()
    with chairlift("serve", "dummy:tiny", "--port", "0", "--threads", "1", PYTHONPROFILEIMPORTTIME="1") as process:
        assert process.stderr is not None
        for line in process.stderr:
            packages.add(imported(line))
            if line.startswith("address"):
                body = {"prompt": "x", "max_tokens": 2, "temperature": 0}
                answer = httpx.post(f"{line.split()[1]}/completions", json=body)
                assert answer.json()["usage"]["completion_tokens"] == 2
                process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    assert "numpy" in packages
    assert not packages & {"torch", "triton", "flashinfer"}


def test_who_asks_for_it_in_vain_is_told_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"the executor torch needs the extra gpu: .* -m pip install 'chairlift\[gpu\]'$"):
        check_options(EngineOptions(executor="torch"))
