"""Some tests of the server run on PyTorch too where it is installed; CHAIRLIFT_TEST_EXECUTOR=torch runs all on it."""

from importlib.util import find_spec

import pytest
from mirrored import KIND

ON_BOTH = ("test_choices", "test_streaming", "test_logprobs", "test_timeouts")
"""Files whose tests run on either executor: together they fork, stop, preempt, abort and fail."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.stem in ON_BOTH and find_spec("torch"):
        metafunc.fixturenames.append("executor_kind")
        metafunc.parametrize("executor_kind", ["scripted", "torch"], indirect=True)


@pytest.fixture
def executor_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setenv(KIND, "torch")
