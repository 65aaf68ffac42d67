import json
import shlex
import signal
import socket
from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from processes import END_S, chairlift, until
from scripted_engine import scripted

from chairlift.cli.serving import Asked, banner, fingerprint
from chairlift.compose import EngineOptions
from chairlift.server.settings import Settings


def address(line: str) -> str:
    return line.split()[1].removesuffix("/v1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of a server with a made-up model, set up by a file, an environment variable and flags."""
    config = tmp_path_factory.mktemp("serve") / "chairlift.yaml"
    config.write_text(
        "model: dummy:tiny\nport: 1\nmax-model-len: 1k\nquantization: none\nthreads: 1\nserved-model-name: [first, second]\n"
        "scheduling-policy: deadline\nslo-class: ['chat=500,50', report=60000]\ntenant-weight: [sesame=3]\nsplit: balanced\n"
        "headroom: expected\nitl-target-ms: 40\nmax-priority: 2\nbatch-wait-ms: 10\n"
    )
    with chairlift("serve", "--config", str(config), "--port", "0", CHAIRLIFT_API_KEY="sesame") as process:
        assert "1 thread, weights as floating-point numbers" in until(process, "compute")
        said = "deadline; a tenant is an API key; priorities from -2 to 100; slo_class: chat, report"
        assert until(process, "order").split(maxsplit=1)[1] == said
        yield address(until(process, "address"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0


@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
@pytest.mark.parametrize("flag", ["--async-scheduling", "--no-async-scheduling"])
def test_a_server_in_pytorch_says_so_and_answers(flag: str) -> None:
    asked = ("--executor", "torch", "--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "reference")
    asked = (*asked, "--enforce-eager", flag)
    with chairlift("serve", "dummy:tiny", "--port", "0", *asked, OMP_NUM_THREADS="1") as process:
        said = "torch: cpu, weights in bfloat16, KV bf16, attention reference (asked for), other kernels torch"
        more = ", two steps in flight" if flag == "--async-scheduling" else ""
        assert until(process, "compute").split(maxsplit=1)[1] == said + more
        url = address(until(process, "address"))
        body = {"prompt": "x", "max_tokens": 3, "temperature": 0.5, "seed": 1, "n": 2, "logprobs": 1}
        assert httpx.post(f"{url}/v1/completions", json=body).json()["usage"]["completion_tokens"] == 6
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0


def get(url: str, key: str | None = "sesame") -> httpx.Response:
    return httpx.get(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})


def test_the_address_in_the_terminal_is_that_of_a_healthy_server(server: str) -> None:
    assert httpx.get(f"{server}/health").status_code == 200


def test_the_key_in_the_environment_is_asked_for(server: str) -> None:
    assert get(f"{server}/v1/models", key=None).status_code == 401


def test_the_configuration_file_names_the_model(server: str) -> None:
    assert [model["id"] for model in get(f"{server}/v1/models").json()["data"]] == ["first", "second"]


def test_the_configuration_file_sets_the_context(server: str) -> None:
    assert get(f"{server}/v1/models").json()["data"][0]["max_model_len"] == 1000


def test_a_chat_is_answered(server: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
    answer = httpx.post(f"{server}/v1/chat/completions", json=body, headers={"Authorization": "Bearer sesame"})
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_class_of_the_configuration_file_may_be_asked_for(server: str) -> None:
    body = {"prompt": "x", "max_tokens": 1, "slo_class": "report", "priority": -9, "deadline_ms": 100}
    for name, status in (("report", 200), ("gold", 400)):
        asked = body | {"slo_class": name}
        answer = httpx.post(f"{server}/v1/completions", json=asked, headers={"Authorization": "Bearer sesame"})
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(), "fair; a tenant is a request's `user`; priorities from -100 to 100"),
        (
            Settings(tenant_header="X-Tenant", trusted_proxies=(ip_network("10.0.0.0/8"),)),
            "fair; a tenant is what 10.0.0.0/8 put into X-Tenant; priorities from 0 to 100",
        ),
    ],
)
def test_the_terminal_says_who_shares(settings: Settings, said: str) -> None:
    lines = banner(scripted(), Asked("m", "127.0.0.1", 8000, (), None, EngineOptions(), settings), "http://127.0.0.1:8000")
    assert f"order     {said}" in lines


def test_a_port_in_use_is_found_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with chairlift("serve", "dummy:tiny", "--port", str(port)) as process:
            _, err = process.communicate(timeout=END_S)
    assert process.returncode == 1
    assert err.startswith(f"error: port {port} on 127.0.0.1 is in use already")
    assert err.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with chairlift("serve", str(broken), "--port", "0") as process:
        _, err = process.communicate(timeout=END_S)
    assert process.returncode == 1
    assert "broken.gguf" in err.splitlines()[-1]


def test_the_texts_of_a_server_do_not_depend_on_threads_or_instructions() -> None:
    engine = scripted()
    other = replace(engine, fit=replace(engine.fit, computes=replace(engine.fit.computes, isa="avx2", threads=7)))
    assert fingerprint(engine) == fingerprint(other)


def test_the_texts_of_a_server_depend_on_how_keys_are_stored() -> None:
    engine = scripted()
    other = replace(engine, fit=replace(engine.fit, computes=replace(engine.fit.computes, kv_cache_dtype="f16")))
    assert fingerprint(engine) != fingerprint(other)


def test_a_model_without_a_chat_template_is_told_at_the_start() -> None:
    asked = Asked("m", "127.0.0.1", 8000, (), None, EngineOptions(), Settings())
    lines = banner(scripted(template=None), asked, "http://127.0.0.1:8000")
    assert any(line.startswith("template  none") and "--chat-template" in line for line in lines)
    assert "/v1/completions" in lines[-1]


@pytest.mark.parametrize(("layout", "told"), [("paged", False), ("contiguous", True)])
def test_a_layout_that_shares_nothing_is_told_at_the_start(layout: str, told: bool) -> None:
    engine = scripted()
    fit = replace(engine.fit, config=replace(engine.fit.config, kv_layout=layout))
    asked = Asked("m", "127.0.0.1", 8000, (), None, EngineOptions(), Settings())
    lines = banner(replace(engine, fit=fit), asked, "http://127.0.0.1:8000")
    assert any(line.startswith("layout    contiguous") and "not shared" in line for line in lines) == told


def test_the_room_for_those_who_are_swapped_is_told_at_the_start() -> None:
    engine = scripted()
    config = replace(engine.fit.config, num_host_blocks=30, block_size=16, max_model_len=96)
    asked = Asked("m", "127.0.0.1", 8000, (), None, EngineOptions(), Settings())
    lines = banner(replace(engine, fit=replace(engine.fit, config=config, host_bytes=2**30)), asked, "http://127.0.0.1:8000")
    assert "swap      1.0 GiB of host memory: 30 blocks, room for 5.0 full contexts" in lines
    assert not any(line.startswith("swap") for line in banner(engine, asked, "http://127.0.0.1:8000"))


def test_the_request_to_try_can_be_pasted_into_a_shell() -> None:
    asked = Asked("m", "127.0.0.1", 8000, ("it's",), None, EngineOptions(), Settings())
    words = shlex.split(banner(scripted(), asked, "http://127.0.0.1:8000")[-1])
    assert words[:3] == ["try", "curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"
