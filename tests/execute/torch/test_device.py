"""Which device is picked, and what is said when there is none. What only a GPU can do is not tried here."""

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.options import resolve
from chairlift.executors import sized
from chairlift.options import EngineOptions

CPU = Device.pick("cpu")


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch believes that there is a GPU, as long as nobody computes on it."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))


@pytest.mark.usefixtures("one_gpu")
class TestWithAGpu:
    @pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
    def test_it_is_picked(self, name: str) -> None:
        device = Device.pick(name)
        assert (device.on, device.words, device.free_bytes()) == (torch.device("cuda", 0), "cuda:0 (NVIDIA H200)", 7)

    def test_it_computes_in_bfloat16(self) -> None:
        assert Device.pick("auto").dtype("auto") is torch.bfloat16

    def test_an_old_one_computes_in_float16(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert Device.pick("auto").dtype("auto") is torch.float16

    def test_the_cpu_is_picked_if_it_is_asked_for(self) -> None:
        assert Device.pick("cpu") == CPU

    def test_one_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^device 'cuda:7': this machine has only cuda:0$"):
            Device.pick("cuda:7")

    @pytest.mark.parametrize(("count", "said"), [(0, "no CUDA device"), (4, "only cuda:0 to cuda:3")])
    def test_what_there_is_instead_is_told(self, count: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        with pytest.raises(ConfigError, match=f"^device 'cuda:7': this machine has {said}$"):
            Device.pick("cuda:7")

    def test_every_rank_has_a_gpu_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        device = Device.pick("auto")
        assert (device.ranks(1), device.ranks(3)) == (("cuda:0",), ("cuda:0", "cuda:1", "cuda:2"))
        assert (Device.pick("cuda:2").ranks(1), device.transport) == (("cuda:2",), "NCCL")

    @pytest.mark.parametrize(
        ("name", "size", "said"),
        [
            ("cuda", 5, "tensor_parallel_size 5: this machine has 4 GPUs"),
            ("cuda:1", 2, "device 'cuda:1': 2 ranks take the first 2 GPUs, so it can only be cuda"),
        ],
    )
    def test_more_ranks_than_gpus_are_refused(self, name: str, size: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        with pytest.raises(ConfigError, match=f"^{said}$"):
            Device.pick(name).ranks(size)


@pytest.mark.usefixtures("one_gpu")
class TestWhatIsCapturedOnAGpu:
    def test_decode_steps_of_as_many_rows_as_there_may_be(self) -> None:
        chosen = resolve("cuda", "auto", "auto")
        assert (
            chosen.kernels(256) == "attention triton (it can be captured), other kernels triton, CUDA graphs for up to 256 rows"
        )
        assert chosen.captured(2) == (1, 2)

    @pytest.mark.parametrize(("rows", "said"), [(1, "1 row"), (9999, "512 rows")])
    def test_so_many(self, rows: int, said: str) -> None:
        assert resolve("cuda", "auto", "triton").kernels(rows).endswith(f", CUDA graphs for up to {said}")

    def test_nothing_if_that_is_asked_for(self) -> None:
        chosen = resolve("cuda", "auto", "auto", enforce_eager=True)
        assert chosen.kernels(256) == (
            "attention triton (FlashInfer: flashinfer is not installed), other kernels triton, no CUDA graphs (asked for eager)"
        )
        assert chosen.captured(256) == ()

    def test_nothing_by_several_ranks(self) -> None:
        chosen = resolve("cuda", "auto", "auto", ranks=2)
        assert chosen.kernels(256).endswith(", no CUDA graphs (not tried with several ranks)")

    def test_nothing_with_attention_that_cannot_be(self) -> None:
        chosen = resolve("cuda", "auto", "reference")
        assert chosen.kernels(256).endswith(", no CUDA graphs (attention reference cannot be captured)")
        assert chosen.captured(256) == ()


@pytest.mark.usefixtures("one_gpu")
class TestHowMuchAGpuTakesAtOnce:
    def test_more_than_a_cpu_if_nobody_says(self) -> None:
        for device, sizes in (("auto", (256, 2048)), ("cpu", (64, 512))):
            options = sized(EngineOptions(executor="torch", device=device))
            assert (options.max_num_seqs, options.max_num_batched_tokens) == sizes

    def test_whatever_was_said(self) -> None:
        options = sized(EngineOptions(executor="torch"), max_num_seqs=3, max_num_batched_tokens=7)
        assert (options.max_num_seqs, options.max_num_batched_tokens) == (3, 7)

    @pytest.mark.parametrize(
        ("said", "sizes"), [({"max_num_seqs": 3000}, (3000, 3000)), ({"max_num_batched_tokens": 9}, (9, 9))]
    )
    def test_what_nobody_said_gives_way(self, said: dict[str, int], sizes: tuple[int, int]) -> None:
        options = sized(EngineOptions(executor="torch"), **said)
        assert (options.max_num_seqs, options.max_num_batched_tokens) == sizes


def test_the_cpu_captures_nothing_and_does_not_speak_of_it() -> None:
    for eager in (False, True):
        chosen = resolve("cpu", "auto", "auto", enforce_eager=eager)
        assert chosen.kernels(256) == "attention reference (the others are for GPUs), other kernels torch"
        assert chosen.captured(256) == ()


class TestWithout:
    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def test_the_cpu_is_picked_and_computes_in_float32(self) -> None:
        device = Device.pick("auto")
        assert (device, device.words, device.dtype("auto"), device.free_bytes()) == (CPU, "cpu", torch.float32, None)

    def test_a_pytorch_without_cuda_is_told(self) -> None:
        with pytest.raises(ConfigError, match=r"^device 'cuda': the installed PyTorch .* was built without CUDA$"):
            Device.pick("cuda")

    @pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", "CUDA"])
    def test_a_name_that_is_none_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="is unknown: it may be auto, cpu, cuda, or cuda:1 for the second one"):
            Device.pick(name)


def test_a_type_of_numbers_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype 'int4' is unknown: it may be auto, bfloat16, float16, float32"):
        CPU.dtype("int4")


def test_what_is_put_does_not_change_with_its_source() -> None:
    source = np.arange(3)
    put = CPU.put(source)
    source[:] = 9
    assert put.tolist() == [0, 1, 2]


def test_what_is_fetched_does_not_change_with_its_source() -> None:
    source = torch.arange(3)
    fetched = CPU.fetch(source)
    source.fill_(9)
    assert fetched.tolist() == [0, 1, 2]
