"""What must hold on a device, as plain functions: `tests/gpu` runs them under pytest, `scripts/gpu-check` without it as well.

Knows the executor in PyTorch and what it must come to; needs neither pytest nor Hypothesis. On the CPU Triton's kernels run in
its interpreter, which takes its time: there are fewer of those checks.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from attention_cases import SCALE, Case, naive
from executor_cases import CASE_BLOCK, in_pieces, reference_logits
from masks import mask_of
from numpy.typing import NDArray
from ops_cases import ACTIVATIONS, RotationCase, assert_close, random
from tiny_decoders import VARIANTS, ArrayWeights, random_tokens, random_weights, row
from torch_executors import torch_executor
from virtual import Ride, request

from chairlift.core.config import EngineConfig
from chairlift.core.errors import NothingAllowed
from chairlift.core.ports import Executor
from chairlift.core.types import Draw, Move, Plan, Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute import sampler
from chairlift.execute.reference import ReferenceExecutor
from chairlift.execute.torch import draws as describing
from chairlift.execute.torch.attention import backends
from chairlift.execute.torch.attention.backends import Backend
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.draws import Wanted
from chairlift.execute.torch.kernels.ops import TritonOps
from chairlift.execute.torch.kernels.sampler import TritonSampler
from chairlift.execute.torch.ops import Activation, Ops, TorchOps
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.group import ALONE, Ranks, meet
from chairlift.execute.torch.sampler import BROKEN, EXCLUDED, FINE, Sampler, TorchSampler
from chairlift.execute.torch.swap import HostStore
from chairlift.models.description import Description

Check = Callable[[Device], None]

BLOCKS = [7, 2, 5]
LENGTH = 45
EDGES = (0, 20, 44, 45)
"""Of the steps in which a text is computed: a prompt, a chunk of it, a next token."""
SHORT_LENGTH, SHORT_EDGES = 20, (0, 12, 19, 20)

LOGITS = {torch.float32: 2e-4, torch.bfloat16: 0.1}
"""As parts of the largest logit, or of 1: what products in another order differ by, and what 8 bits of precision do to weights
that magnify errors."""
ATTENTION = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of outputs about 1 wide."""

FEW = ("plain", "everything")
"""Variants whose decoders run with the kernels in bfloat16, too: each is compiled for itself."""
INTERPRETED = ("everything", torch.float32)
"""The one that runs in the interpreter."""
MIXED = ((1, 45), (7, 30), (1, 1), (3, 0), (1, 0), (4, 4))
"""A next token, a chunk, a first token, two pads and a prompt: tokens of the row, and what its last one sees."""


def checks(device: Device) -> dict[str, Check]:
    """All of them by name. Those of many architectures come last, should time be short: each is compiled for itself."""
    return dict([*_operations(device), *_attention(device), *_draws(device), *_steps(device), *_logits(device)])


def run(check: Check, device: Device) -> None:
    """As an executor runs its steps. The interpreter computes with NumPy, which warns of infinities, and a GPU does not."""
    with device.active(), torch.inference_mode(), np.errstate(all="ignore"):
        check(device)
        device.settle()


# ── operations ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _operations(device: Device) -> Iterator[tuple[str, Check]]:
    """Of sizes that a model has on a GPU, and of small ones in the interpreter."""
    rows, hidden, heads, kv_heads, mlp = (300, 4096, 32, 8, 14_336) if device.capability else (3, 96, 4, 2, 1030)
    for dtype in ATTENTION:
        words = _words(dtype)
        yield f"norm, {words}", partial(_norm, rows=rows, size=hidden, dtype=dtype)
        yield f"sum and norm, {words}", partial(_add_norm, rows=rows, size=hidden, dtype=dtype)
        for activation in ACTIVATIONS:
            yield f"gate {activation}, {words}", partial(_gate, activation=activation, rows=rows, size=mlp, dtype=dtype)
        for head_dim in (64, 80, 128, 256) if dtype == torch.bfloat16 else (128,):
            sizes = {"tokens": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16, "seed": 3}
            for normed in (False, True):
                name = f"rotate and store, heads of {head_dim}{', with norms' * normed}, {words}"
                yield name, partial(_rotate, sizes=sizes, normed=normed, dtype=dtype)


def _norm(device: Device, *, rows: int, size: int, dtype: torch.dtype) -> None:
    x = random(1, rows, size + 5, dtype=dtype, device=device.on)[:, 2:-3]
    weight = random(2, size, device=device.on)
    assert_close(TritonOps().norm(x, weight, 1e-6), TorchOps().norm(x, weight, 1e-6))


def _add_norm(device: Device, *, rows: int, size: int, dtype: torch.dtype) -> None:
    x = random(1, rows, size + 5, dtype=dtype, device=device.on)[:, 2:-3]
    residual, weight = random(2, rows, size, dtype=dtype, device=device.on), random(3, size, device=device.on)
    for got, wanted in zip(*(ops.add_norm(x, residual, weight, 1e-6) for ops in _both()), strict=True):
        assert_close(got, wanted)


def _gate(device: Device, *, activation: Activation, rows: int, size: int, dtype: torch.dtype) -> None:
    both = 4 * random(1, rows, 2 * size + 3, dtype=dtype, device=device.on)[:, :-3]
    got, wanted = (ops.gate(both, activation) for ops in _both())
    assert_close(got, wanted)


def _rotate(device: Device, *, sizes: dict[str, int], normed: bool, dtype: torch.dtype) -> None:
    case = RotationCase(**sizes, normed=normed, dtype=dtype, device=device.on)
    for got, wanted in zip(*(case.run(ops) for ops in _both()), strict=True):
        assert_close(got, wanted)


def _both() -> tuple[Ops, Ops]:
    return TritonOps(), TorchOps()


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _attention(device: Device) -> Iterator[tuple[str, Check]]:
    """Every type and size of heads is compiled for itself, so not all are tried with all."""
    every, one = ((64, 80, 96, 128, 256), 128) if device.capability else ((16, 64), 16)
    for dtype in ATTENTION:
        dims = every if dtype == torch.bfloat16 else (one,)
        for head_dim, window in [*((head_dim, None) for head_dim in dims), (one, 20)]:
            heads = Heads(heads=8, kv_heads=2, head_dim=head_dim, block_size=16, scale=SCALE, dtype=dtype)
            name = f"attention, heads of {head_dim}, {f'window {window}' if window else 'no window'}, {_words(dtype)}"
            yield name, partial(_attend, case=Case(heads, MIXED, window))
    if device.capability:
        heads = Heads(heads=8, kv_heads=2, head_dim=128, block_size=16, scale=128**-0.5, dtype=torch.bfloat16)
        yield "attention, long rows", partial(_attend, case=Case(heads, ((1, 3000), (200, 1500), (1, 17)), None))


def _attend(device: Device, *, case: Case) -> None:
    """Memory that no query may read holds no numbers, so one key too many would show."""
    attention = backends.build(Backend("triton", "a check"), heads=case.heads, device=device, max_rows=8, longest=4096)
    step = case.batch
    on_device = replace(
        step, bounds=step.bounds.to(device.on), contexts=step.contexts.to(device.on), tables=step.tables.to(device.on)
    )
    attention.plan(on_device)
    got = attention.run(0, case.queries.to(device.on), case.kv.to(device.on), case.window).cpu()
    assert got.dtype == case.heads.dtype
    np.testing.assert_allclose(got.double(), naive(case), rtol=0, atol=ATTENTION[case.heads.dtype])


# ── draws ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

HISTORY = array("i", random_tokens(30))
DRAWS = {
    "greedy": Draw(0, Sampling(temperature=0)),
    "by chance": Draw(1, Sampling(seed=7)),
    "of the best 50": Draw(0, Sampling(0.8, 50, seed=1)),
    "of a nucleus": Draw(0, Sampling(0.8, 0, 0.9, seed=2)),
    "of the best and a nucleus": Draw(0, Sampling(0.8, 50, 0.3, seed=3)),
    "above a share": Draw(0, Sampling(1.2, min_p=0.05, seed=4)),
    "penalised": Draw(0, Sampling(1.0, seed=5, repetition_penalty=1.3, frequency_penalty=0.5), history=HISTORY, prompt_len=10),
    "biased": Draw(0, Sampling(0.5, seed=6, logit_bias=((3, 4.0), (7, -100.0)))),
    "banned": Draw(0, Sampling(seed=8), frozenset(range(20))),
    "nothing left": Draw(0, Sampling(seed=9), mask=array("I", [0])),
}


def _draws(device: Device) -> Iterator[tuple[str, Check]]:
    samplers: dict[str, Sampler] = {"triton": TritonSampler(block=2048 if device.capability else 128), "torch": TorchSampler()}
    vocab = 128_256 if device.capability else 300
    for words, of in samplers.items():
        for name, draw in DRAWS.items():
            yield f"draw {name}, {words}", partial(_drawn, of=of, draws=[draw], vocab=vocab)
        yield f"draw all in one step, {words}", partial(_drawn, of=of, draws=list(DRAWS.values()), vocab=vocab)


def _drawn(device: Device, *, of: Sampler, draws: list[Draw], vocab: int) -> None:
    """Out of the same random logits, and out of rounded ones, of which many are equal."""
    draws = [draw if draw.mask is None else draw._replace(mask=mask_of((), vocab)) for draw in draws]
    for logits in _scores(vocab):
        wanted = [Wanted(draw, 0, len(HISTORY) + place) for place, draw in enumerate(draws)]
        described = describing.write(wanted, rows=1, vocab=vocab, put=device.put)
        drawn = of.draw(torch.from_numpy(logits[None].copy()).to(device.on), described, None)
        got = zip(drawn.tokens.tolist(), drawn.failed.tolist(), strict=True)
        said = [token if code == FINE else {BROKEN: "broken", EXCLUDED: "excluded"}[code] for token, code in got]
        assert said == [_expected(logits, one) for one in wanted], f"{said} were drawn"


def _scores(vocab: int) -> Iterator[NDArray[np.float32]]:
    logits = (3 * np.random.default_rng(4).standard_normal(vocab)).astype(np.float32)
    yield logits
    yield np.round(logits)


def _expected(logits: NDArray[np.float32], wanted: Wanted) -> int | str:
    try:
        return sampler.draw(logits, wanted.draw, wanted.place)
    except NothingAllowed:
        return "excluded"


# ── logits ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _logits(device: Device) -> Iterator[tuple[str, Check]]:
    for dtype in LOGITS:
        for name, description in VARIANTS.items():
            variant = partial(_against_the_reference, description=description)
            yield f"logits, {name}, PyTorch, {_words(dtype)}", partial(variant, of=partial(_plain, dtype=dtype))
            if (device.capability and (dtype == torch.float32 or name in FEW)) or (name, dtype) == INTERPRETED:
                yield f"logits, {name}, kernels, {_words(dtype)}", partial(variant, of=partial(_kernels, dtype=dtype))


def _against_the_reference(device: Device, *, of: Callable[[Device], Choice], description: Description) -> None:
    choice, weights = of(device), random_weights(description)
    interpreted = choice.fused and not device.capability
    length, edges = (SHORT_LENGTH, SHORT_EDGES) if interpreted else (LENGTH, EDGES)
    tokens = random_tokens(length)
    expected = reference_logits(description, weights, tokens)
    got = in_pieces(torch_executor(description, weights, choice=choice), tokens, edges, BLOCKS)
    _assert_close(got, expected, choice.dtype)


def _assert_close(got: NDArray[np.float32], expected: NDArray[np.float32], dtype: torch.dtype) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=LOGITS[dtype] * max(1.0, float(np.abs(expected).max())))


def _plain(device: Device, dtype: torch.dtype = torch.float32) -> Choice:
    return Choice(device, dtype, Backend("reference", "a check"), eager="a check")


def _kernels(device: Device, dtype: torch.dtype = torch.float32) -> Choice:
    return Choice(device, dtype, Backend("triton", "a check"), eager="a check", fused=True)


# ── whole steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EVERYTHING = VARIANTS["everything"]
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "penalised": Sampling(temperature=0, repetition_penalty=1.3, logprobs=3),
    "drawn": Sampling(seed=5, presence_penalty=0.7, frequency_penalty=0.4, top_k=20, logprobs=0),
    "biased": Sampling(temperature=0.5, seed=6, logit_bias=((3, 4.0), (7, -100.0)), top_p=0.9, min_p=0.01),
}
POOL = 11
"""So few blocks that somebody is preempted."""


def _steps(device: Device) -> Iterator[tuple[str, Check]]:
    yield "swap: what is stored comes back into other blocks", _swap
    yield "copies: moved blocks hold what their sources held", _copies
    yield f"one rank over {device.transport} computes what no group does", _one_rank
    for depth in (1, 2):
        yield f"answers at depth {depth} are those of the reference", partial(_answers, depth=depth)
    yield "answers are the same at both depths", _both_depths
    if device.graphs:
        for depth in (1, 2):
            yield f"captured steps at depth {depth} answer as others do", partial(_captured, depth=depth)


def _swap(device: Device) -> None:
    """In stages and pieces that hold fewer blocks than there are."""
    shape = (3, 12, 2, 4, 2, 8)
    kv = torch.arange(3 * 12 * 2 * 4 * 2 * 8, dtype=torch.int16).reshape(shape).to(device.on)
    before, block_bytes = kv.clone(), kv[:, 0].nbytes
    store = HostStore(device, kv, num_blocks=7, pinned_bytes=3 * block_bytes, staged_bytes=2 * block_bytes)
    blocks, host, others = [11, 0, 5, 3, 8, 1, 2], [6, 2, 0, 1, 5, 4, 3], [0, 1, 2, 3, 4, 5, 6]
    store.store([Move("store", source, target) for source, target in zip(blocks, host, strict=True)])
    kv.fill_(-1)
    store.load([Move("load", source, target) for source, target in zip(host, others, strict=True)])
    assert torch.equal(kv[:, others], before[:, blocks])
    assert bool((kv[:, 7:] == -1).all())


def _copies(device: Device) -> None:
    weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
    executor = torch_executor(EVERYTHING, weights, choice=_plain(device))
    executor.logits([row(tokens[:-1], BLOCKS)])
    moves = (Move("copy", 7, 20), Move("copy", 2, 21), Move("copy", 5, 22))
    executor.launch(Plan(0, (row(random_tokens(48, seed=8), [30, 31, 32], seq_id="b"),), moves=moves))
    executor.collect()
    executor.logits([row(random_tokens(48, seed=9), BLOCKS)])
    logits = executor.logits([row(tokens[-1:], [20, 21, 22], start=LENGTH - 1)])[0]
    _assert_close(logits, reference_logits(EVERYTHING, weights, tokens), torch.float32)


def _one_rank(device: Device) -> None:
    """All that the connection of several ranks can be tried with on a single GPU."""
    tokens, weights, choice = random_tokens(LENGTH), random_weights(EVERYTHING), _plain(device)
    group = Ranks.join(0, 1, device, store=meet(timeout_s=60), timeout_s=60)
    expected, got = (
        in_pieces(torch_executor(EVERYTHING, weights, choice=choice, group=one), tokens, EDGES, BLOCKS)
        for one in (ALONE, group)
    )
    np.testing.assert_array_equal(got, expected)
    drawn = torch.arange(6, device=device.on).reshape(2, 3)
    assert group.broadcast(drawn).tolist() == [[0, 1, 2], [3, 4, 5]]
    group.close()


def _answers(device: Device, *, depth: int) -> None:
    weights = random_weights(EVERYTHING)
    expected = _ridden(ReferenceExecutor.load(EVERYTHING, weights, num_blocks=POOL, block_size=CASE_BLOCK), depth=1)
    assert expected.preemptions > 0
    assert _on_device(device, weights, depth=depth).tokens == expected.tokens


def _both_depths(device: Device) -> None:
    weights = random_weights(EVERYTHING)
    alone, overlapped = (_on_device(device, weights, depth=depth) for depth in (1, 2))
    assert overlapped.tokens == alone.tokens
    assert overlapped.endings == alone.endings


def _captured(device: Device, *, depth: int) -> None:
    """But for the last bits of what is told of tokens: captured steps have other shapes."""
    weights, choice = random_weights(EVERYTHING), _kernels(device)
    eager, captured = (_on_device(device, weights, depth=depth, choice=one) for one in (choice, replace(choice, eager=None)))
    assert captured.tokens == eager.tokens
    assert captured.endings == eager.endings


def _on_device(device: Device, weights: ArrayWeights, *, depth: int, choice: Choice | None = None) -> Ride:
    """With all kernels on a GPU, unless `choice` says something else; the interpreter would take minutes for answers."""
    choice = choice or (_kernels(device) if device.capability else _plain(device))
    executor = torch_executor(EVERYTHING, weights, choice=choice, num_blocks=POOL, max_tokens=256, max_rows=4)
    executor.capture()
    return _ridden(executor, depth=depth)


def _ridden(executor: Executor, *, depth: int) -> Ride:
    config = EngineConfig(
        max_model_len=128, num_blocks=POOL, block_size=CASE_BLOCK, max_num_seqs=4, max_num_batched_tokens=24, depth=depth
    )
    ride = Ride(EngineCore(config, executor))
    for place, (name, sampling) in enumerate(SAMPLINGS.items()):
        prompt = random_tokens(20 + 5 * place, seed=place)
        ride.submit(request(name, prompt, 40, arrival=float(place), sampling=sampling))
    ride.run()
    assert ride.free_again
    return ride


def _words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
