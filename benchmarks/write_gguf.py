"""Writes a model of random weights as a GGUF file, to measure this and other engines on the same bytes of any shape.

    python benchmarks/write_gguf.py llama-1b Q8_0 llama-1b-q8.gguf --tokenizer smollm2.gguf

Shapes are the presets of `dummy:`. The tokenizer is that of another file, its vocabulary padded with tokens that nobody writes.
Weights are made, quantised and written a few rows at a time, so a file may be larger than memory. The texts are nonsense.
"""

import argparse
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants
from numpy.typing import NDArray

from chairlift.models.dummy import DEVIATION, PRESETS, Preset

TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32")
"""Those that the library can quantise to."""
FLOATS_AT_ONCE = 1 << 24
UNUSED = 5
"""GGUF's kind of a token that no text has."""
ALIGNMENT = 32


def tensors(shape: Preset) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names as llama.cpp has them, and shapes (outputs, inputs). The head is tied."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocab, shape.hidden)
    yield "output_norm.weight", (shape.hidden,)
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm.weight", (shape.hidden,)
        yield f"blk.{layer}.attn_q.weight", (queries, shape.hidden)
        yield f"blk.{layer}.attn_k.weight", (keys, shape.hidden)
        yield f"blk.{layer}.attn_v.weight", (keys, shape.hidden)
        yield f"blk.{layer}.attn_output.weight", (shape.hidden, queries)
        yield f"blk.{layer}.ffn_norm.weight", (shape.hidden,)
        yield f"blk.{layer}.ffn_gate.weight", (shape.mlp, shape.hidden)
        yield f"blk.{layer}.ffn_up.weight", (shape.mlp, shape.hidden)
        yield f"blk.{layer}.ffn_down.weight", (shape.hidden, shape.mlp)


def kind_of(name: str, kind: GGMLQuantizationType, embedding: GGMLQuantizationType) -> GGMLQuantizationType:
    if name.endswith("norm.weight"):
        return GGMLQuantizationType.F32
    return embedding if name == "token_embd.weight" else kind


def pieces(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> Iterator[NDArray[Any]]:
    """The rows of a tensor, quantised, some at a time. The same name and shape have the same numbers everywhere."""
    if len(shape) == 1:
        yield np.ones(shape, dtype=np.float32)
        return
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    rows, width = shape
    step = max(1, FLOATS_AT_ONCE // width)
    for first in range(0, rows, step):
        values = generator.standard_normal((min(step, rows - first), width), dtype=np.float32)
        yield quants.quantize(np.multiply(values, np.float32(DEVIATION), out=values), kind)


def stored_shape(shape: tuple[int, ...], kind: GGMLQuantizationType) -> tuple[int, ...]:
    """Quantised rows are counted in bytes."""
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return shape
    return quants.quant_shape_to_byte_shape(shape, kind)


def stored_dtype(kind: GGMLQuantizationType) -> np.dtype[Any]:
    plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    return np.dtype(plain.get(kind, np.uint8))


def describe(writer: GGUFWriter, shape: Preset, kind: str) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])


def copy_tokenizer(writer: GGUFWriter, source: Path, vocab: int) -> None:
    """All that the other file says of its tokenizer, and tokens up to `vocab`."""
    reader = GGUFReader(source)
    count = len(reader.fields["tokenizer.ggml.tokens"].contents())
    if count > vocab:
        raise SystemExit(f"{source}: a vocabulary of {count:,} tokens is more than the {vocab:,} of this shape")
    padding: dict[str, list[Any]] = {
        "tokenizer.ggml.tokens": [f"[unused{number}]" for number in range(count, vocab)],
        "tokenizer.ggml.token_type": [UNUSED] * (vocab - count),
        "tokenizer.ggml.scores": [0.0] * (vocab - count),
    }
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        kind, inner = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        if kind == GGUFValueType.ARRAY:
            value = [*value, *padding.get(name, [])]
        writer.add_key_value(name, value, kind, sub_type=inner)


def write(path: Path, shape_name: str, kind: str, embedding: str, tokenizer: Path) -> int:
    """Bytes of the file."""
    shape = PRESETS[shape_name]
    body, head = GGMLQuantizationType[kind], GGMLQuantizationType[embedding]
    writer = GGUFWriter(path, "llama")
    writer.add_name(f"{shape_name} {kind}, random weights")
    describe(writer, shape, kind)
    copy_tokenizer(writer, tokenizer, shape.vocab)
    layout = [(name, size, kind_of(name, body, head)) for name, size in tensors(shape)]
    for name, size, form in layout:
        stored, dtype = stored_shape(size, form), stored_dtype(form)
        writer.add_tensor_info(name, stored, dtype, math.prod(stored) * dtype.itemsize, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.seek(0, 2)
        for name, size, form in layout:
            _pad(file)
            for piece in pieces(name, size, form):
                file.write(piece.tobytes())
            print(name, flush=True)
        _pad(file)
        return file.tell()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=PRESETS, metavar="SHAPE", help=", ".join(PRESETS))
    parser.add_argument("type", choices=TYPES, metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("file", type=Path, metavar="FILE", help="the GGUF file to write")
    parser.add_argument("--embedding", choices=TYPES, metavar="TYPE", help="of embedding and head; by default as all others")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="GGUF", help="whose tokenizer to take, SmolLM2's say")
    options = parser.parse_args()
    size = write(options.file, options.shape, options.type, options.embedding or options.type, options.tokenizer)
    print(f"{options.file}: {size:,} bytes")


if __name__ == "__main__":
    main()
