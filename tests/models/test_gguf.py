"""The GGUF container, compared with the `gguf` package, and broken on purpose."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import gguf_metadata, gguf_tensors, write_gguf

from chairlift.core.errors import ModelError
from chairlift.models.gguf import MAX_STRING, TENSOR_TYPES, CutHeader, open_gguf, read_header

KINDS = [Kind(code) for code in TENSOR_TYPES]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    return write_gguf(path, gguf_tensors(), gguf_metadata(), stored=Kind.Q8_0).read_bytes()


def entry(name: str, shape: tuple[int, ...] = (4,), code: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return struct.pack("<Q", len(name)) + name.encode() + dimensions + struct.pack("<IQ", code, offset)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(*entries: bytes, keys: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    body = b"GGUF" + struct.pack("<IQQ", version, len(entries), len(keys)) + b"".join(keys) + b"".join(entries)
    return body + bytes(-len(body) % 32)


def refusal(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        read_header(data, size=len(data))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_block_sizes_are_those_of_ggml(kind: Kind) -> None:
    ours = TENSOR_TYPES[kind.value]
    assert (ours.name, ours.elements, ours.bytes) == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_tensor_type_reads_as_the_gguf_package_reads_it(kind: Kind, tmp_path: Path) -> None:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(kind.value)
    # Small bytes only, so that scales are finite numbers: 0x3b3b and below are at most 0.9 as float16.
    stored = generator.integers(0, 0x3C, (3, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("one", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = open_gguf(tmp_path / "one.gguf")
    values = file.float32("one")
    file.close()

    expected = gguf.quants.dequantize(stored.view(_plain(kind)), kind).astype(np.float32)
    assert values.shape == (3, 2 * elements)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    assert values.flags.writeable
    np.testing.assert_array_equal(values, expected)


def _plain(kind: Kind) -> np.dtype[np.generic]:
    return np.dtype({Kind.F32: np.float32, Kind.F16: np.float16}.get(kind, np.uint8))


def test_header_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf_tensors(), gguf_metadata(), stored=Kind.Q8_0)
    theirs = gguf.GGUFReader(path)
    file = open_gguf(path)
    metadata = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert file.header.metadata == metadata
    places = {tensor.name: (tensor.tensor_type, int(tensor.data_offset), int(tensor.n_bytes)) for tensor in theirs.tensors}
    assert {name: (t.type.code, t.offset, t.size) for name, t in file.header.tensors.items()} == places
    file.close()


def test_every_kind_of_value_is_read() -> None:
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    keys = [key(f"n{kind}", kind, struct.pack(f"<{code}", 7)) for kind, code in numbers.items()]
    keys.append(key("flag", 7, b"\1"))
    keys.append(
        key("nested", 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQ", 0, 1) + b"\5" + struct.pack("<IQ", 7, 1) + b"\0")
    )
    read = read_header(header(keys=tuple(keys)), size=1 << 20).metadata
    assert read == {f"n{kind}": 7 for kind in numbers} | {"flag": True, "nested": [[5], [False]]}


def test_version_2_is_read() -> None:
    assert read_header(header(entry("t"), version=2) + bytes(16), size=1 << 20).version == 2


def test_alignment_of_the_file_is_used() -> None:
    data = header(entry("t"), keys=(key("general.alignment", 4, struct.pack("<I", 64)),))
    assert read_header(data, size=1 << 20).data_start == 128


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (header(version=1), "version 1 is not supported"),
        (header(version=4), "version 4 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors: the limit is"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys: the limit is"),
        (header(entry("t"))[:40], "cut"),
        (header(entry("t")), "tensor 't' needs"),
        (header(entry("t"), entry("t")) + bytes(64), "twice"),
        (header(keys=(key("k", 0, b"\0"), key("k", 0, b"\0"))), "'k' stands there twice"),
        (header(entry("t", (64,)), entry("u", offset=32)) + bytes(512), "overlaps"),
        (header(entry("t", offset=1)) + bytes(64), "alignment"),
        (header(entry("t", code=16)), "type IQ2_XXS, which is not supported"),
        (header(entry("t", code=4)), "type 4, which is not supported"),
        (header(entry("t", (31,), code=8)), "no multiple of Q8_0's 32"),
        (header(entry("t", (0, 4))), "empty dimension"),
        (header(entry("t", ())), "0 dimensions"),
        (header(entry("t", (1,) * 5)), "5 dimensions"),
        (header(entry("t", (1 << 62, 1 << 62))), "cut"),
        (header(keys=(key("general.alignment", 4, struct.pack("<I", 48)),)), "power of two"),
        (header(keys=(key("general.alignment", 8, struct.pack("<Q", 1) + b"x"),)), "power of two"),
        (header(keys=(key("k", 13, b""),)), "value type 13 is unknown"),
        (header(keys=(key("k", 8, struct.pack("<Q", MAX_STRING + 1)),)), "the limit is"),
        (header(keys=(key("k", 9, struct.pack("<IQ", 4, 1 << 40)),)), "the limit is"),
        (header(keys=(key("k", 9, struct.pack("<IQ", 8, 1 << 20)),)), "cut"),
        (header(keys=(key("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 1) + b"\xff"),)), "not UTF-8"),
        (header(keys=(key("k", 9, struct.pack("<IQ", 9, 1) * 6),)), "nested"),
    ],
)
def test_broken_headers_are_refused_in_one_line(data: bytes, said: str) -> None:
    assert said in refusal(data)


def test_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"nothing at all")
    with pytest.raises(ModelError, match=r"no\.gguf: not a GGUF file"):
        open_gguf(tmp_path / "no.gguf")


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").touch()
    with pytest.raises(ModelError, match="is empty"):
        open_gguf(tmp_path / "no.gguf")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        open_gguf(tmp_path / "no.gguf")


@given(st.data())
def test_a_header_that_is_cut_anywhere_asks_for_more(whole: bytes, data: st.DataObject) -> None:
    start = read_header(whole, size=len(whole)).data_start
    cut = data.draw(st.integers(4, start - 32))
    with pytest.raises(CutHeader):
        read_header(whole[:cut], size=len(whole))


@given(st.data())
def test_data_that_is_cut_anywhere_is_noticed_before_it_is_read(whole: bytes, data: st.DataObject) -> None:
    last = max(tensor.offset + tensor.size for tensor in read_header(whole, size=len(whole)).tensors.values())
    cut = data.draw(st.integers(0, last - 1))
    assert refusal(whole[:cut])


@settings(max_examples=300)
@given(st.data())
def test_flipped_bytes_never_raise_anything_but_a_model_error(whole: bytes, data: st.DataObject) -> None:
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, min(len(broken), 4096) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_header(bytes(broken), size=len(broken))
    except ModelError as error:
        assert "\n" not in str(error)  # noqa: PT017  # most broken files are refused, some are merely different
