"""Draws on the device, all of a step at once: they are those of the reference, whoever else is drawn for."""

from array import array
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from draws import logits_and_draws
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from masks import mask_of
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Draw, Logprobs, Sampling
from chairlift.execute import noise, sampler
from chairlift.execute.torch import draws as describing
from chairlift.execute.torch.draws import Wanted
from chairlift.execute.torch.kernels.sampler import TritonSampler
from chairlift.execute.torch.sampler import BROKEN, EXCLUDED, FINE, Drawn, Sampler, TorchSampler

Case = tuple[NDArray[np.float32], Draw, int]

SAMPLERS = [
    pytest.param(TorchSampler(), id="torch"),
    # Rows of many parts, of which the last one is not full.
    pytest.param(TritonSampler(block=16), id="triton"),
]
CLEAR = np.array([0.5, 3.0, -2.0, 1.0, 2.5], dtype=np.float32)
GREEDY = Sampling(temperature=0)


def drawn(
    of: Sampler, logits: NDArray[np.float32], wanted: Sequence[Wanted], pending: list[int] | None = None
) -> tuple[Drawn, tuple[Logprobs | None, ...]]:
    """What is drawn from logits [rows, vocab], and what it tells."""
    described = describing.write(wanted, rows=len(logits), vocab=logits.shape[1], put=lambda values: torch.from_numpy(values))
    last = None if pending is None else torch.tensor(pending)
    result = of.draw(torch.from_numpy(logits.copy()), described, last)
    if result.told is None or described.telling is None:
        return result, (None,) * len(wanted)
    logs, ids = (part.numpy() for part in result.told)
    return result, describing.logprobs(described.telling, logs, ids, len(wanted))


def answers(result: Drawn) -> list[int | str]:
    """Tokens, and what went wrong where there is none."""
    words = {BROKEN: "broken", EXCLUDED: "excluded"}
    return [
        token if code == FINE else words[code]
        for token, code in zip(result.tokens.tolist(), result.failed.tolist(), strict=True)
    ]


def expected(logits: NDArray[np.float32], draw: Draw, place: int) -> int | str:
    if is_close(logits, draw, place):
        reject()
    try:
        return sampler.draw(logits, draw, place)
    except NothingAllowed:
        return "excluded"


def is_close(logits: NDArray[np.float32], draw: Draw, place: int) -> bool:
    """Whether some sum of probabilities reaches top-p is a matter of rounding."""
    sampling = draw.sampling
    if sampling.top_p == 1 or sampling.temperature == 0:
        return False
    try:
        changed = sampler._excluding(sampler._penalised(sampler._biased(logits, draw), draw, place), draw)
    except NothingAllowed:
        return False
    scores = np.sort(sampler._scores(changed, sampling.temperature))[::-1]
    sums = np.cumsum(np.exp(scores[: sampling.top_k or None]))
    return bool((np.abs(sums - sampling.top_p * sums[-1]) < 1e-9 * sums[-1]).any())


@st.composite
def batches(draw: st.DrawFn, *, largest_vocab: int, most: int = 5) -> list[Case]:
    """Cases of one vocabulary: that of the first."""
    cases = draw(st.lists(logits_and_draws(largest_vocab=largest_vocab), min_size=1, max_size=most))
    vocab = len(cases[0][0])
    return [(np.resize(logits, vocab), draw._replace(mask=_resized(draw.mask, vocab)), place) for logits, draw, place in cases]


def _resized(mask: "array[int] | None", vocab: int) -> "array[int] | None":
    return None if mask is None else array("I", np.resize(np.array(mask), -(-vocab // 32)).tolist())


class TestRandomDraws:
    """The interpreter takes a second for a draw, so Triton has less of everything."""

    @settings(max_examples=30)
    @given(cases=batches(largest_vocab=70))
    def test_they_are_those_of_the_reference(self, cases: list[Case]) -> None:
        assert_draws_alike(TorchSampler(), cases)

    @settings(max_examples=8)
    @given(cases=batches(largest_vocab=36, most=2))
    def test_they_are_those_of_the_reference_in_triton(self, cases: list[Case]) -> None:
        assert_draws_alike(TritonSampler(block=16), cases)

    @pytest.mark.parametrize("top_p", [0.05, 0.3, 0.8, 0.97, 0.9999, 1.0])
    @pytest.mark.parametrize("top_k", [0, 1, 50, 2000])
    def test_a_large_vocabulary_is_cut_alike(self, top_p: float, top_k: int) -> None:
        assert_cuts_alike(TorchSampler(), 5000, [Sampling(0.8, top_k, top_p, seed=seed) for seed in (1, 2)])

    def test_a_large_vocabulary_is_cut_alike_in_triton(self) -> None:
        samplings = [Sampling(0.8, top_k, top_p, seed=1) for top_k, top_p in ((0, 0.3), (50, 0.9))]
        assert_cuts_alike(TritonSampler(block=512), 1100, samplings)


def assert_draws_alike(of: Sampler, cases: list[Case]) -> None:
    logits = np.stack([logits for logits, _, _ in cases])
    result, told = drawn(of, logits, [Wanted(draw, row, place) for row, (_, draw, place) in enumerate(cases)])
    assert answers(result) == [expected(*case) for case in cases]
    for (raw, draw, _), token, one in zip(cases, answers(result), told, strict=True):
        if isinstance(token, int) and draw.sampling.logprobs is not None:
            assert_tells_the_same(one, sampler.logprobs(raw, token, draw.sampling.logprobs))


def assert_cuts_alike(of: Sampler, vocab: int, samplings: Sequence[Sampling]) -> None:
    """Of random logits, and of rounded ones, of which many are equal."""
    logits = (3 * np.random.default_rng(4).standard_normal((2, vocab))).astype(np.float32)
    logits[1] = np.round(logits[1])
    wanted = [Wanted(Draw(0, sampling), row, place) for row in range(2) for place, sampling in enumerate(samplings)]
    result, _ = drawn(of, logits, wanted)
    assert answers(result) == [sampler.draw(logits[row], draw, place) for draw, row, place in wanted]


@pytest.mark.parametrize("of", SAMPLERS)
class TestDraws:
    def test_several_of_one_row_have_their_own_noise(self, of: Sampler) -> None:
        logits = np.zeros((2, 100), dtype=np.float32)
        wanted = [Wanted(Draw(choice, Sampling(seed=3)), row, 0) for row, choice in ((0, 0), (0, 1), (1, 0))]
        first, second, other = answers(drawn(of, logits, wanted)[0])
        assert first != second
        assert first == other

    def test_one_row_may_have_changed_logits_and_another_not(self, of: Sampler) -> None:
        banned = Wanted(Draw(0, GREEDY, frozenset({1})), 0, 0)
        assert answers(drawn(of, CLEAR[None], [banned, Wanted(Draw(1, GREEDY), 0, 0)])[0]) == [4, 1]

    @pytest.mark.parametrize("temperature", [1e-4, 1e-12, 1e-300, 5e-324])
    def test_a_tiny_temperature_is_greedy(self, of: Sampler, temperature: float) -> None:
        wanted = [Wanted(Draw(0, Sampling(temperature, top_p=0.9)), 0, place) for place in range(2)]
        assert set(answers(drawn(of, CLEAR[None], wanted)[0])) == {1}


@pytest.mark.parametrize("of", SAMPLERS)
class TestFailures:
    @pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("draw", [Draw(0, GREEDY), Draw(0, Sampling(top_p=0.9)), Draw(0, GREEDY, frozenset({1}))])
    def test_a_logit_that_is_no_number_breaks_its_row_alone(self, of: Sampler, number: float, draw: Draw) -> None:
        logits = np.stack([CLEAR, CLEAR, CLEAR])
        logits[1, 1] = number
        result, _ = drawn(of, logits, [Wanted(draw, row, 0) for row in range(3)])
        first, broken, last = answers(result)
        assert broken == "broken"
        assert first == last == sampler.draw(CLEAR, draw, 0)
        assert result.tokens[1] == 0

    def test_a_logit_that_is_no_number_is_not_mended_by_a_bias(self, of: Sampler) -> None:
        logits = np.array([[np.inf, 1.0]], dtype=np.float32)
        assert answers(drawn(of, logits, [Wanted(Draw(0, Sampling(0, logit_bias=((0, -5.0),))), 0, 0)])[0]) == ["broken"]

    def test_where_nothing_is_allowed_nothing_is_drawn(self, of: Sampler) -> None:
        masked = Draw(0, Sampling(top_k=2, top_p=0.5), frozenset({2}), mask=mask_of([2], 5))
        result, _ = drawn(of, np.stack([CLEAR, CLEAR]), [Wanted(masked, 0, 0), Wanted(Draw(0, GREEDY), 1, 0)])
        assert answers(result) == ["excluded", 1]
        assert result.tokens[0] == 0


@pytest.mark.parametrize("of", SAMPLERS)
class TestPending:
    """The last token of a history may be known to the device alone."""

    @settings(max_examples=8)
    @given(cases=batches(largest_vocab=9, most=3), data=st.data())
    def test_it_counts_as_if_it_were_known(self, of: Sampler, cases: list[Case], data: st.DataObject) -> None:
        awaiting = [
            data.draw(st.booleans()) and draw.history is not None and place > draw.prompt_len for _, draw, place in cases
        ]
        last = [data.draw(st.integers(0, len(cases[0][0]) - 1)) for _ in cases]
        known = [with_last(case, token) if waits else case for case, token, waits in zip(cases, last, awaiting, strict=True)]
        unknown = [with_last(case, -1) if waits else case for case, waits in zip(cases, awaiting, strict=True)]
        logits = np.stack([logits for logits, _, _ in cases])
        pending = [token if waits else -1 for token, waits in zip(last, awaiting, strict=True)]
        result, _ = drawn(of, logits, [Wanted(draw, row, place) for row, (_, draw, place) in enumerate(unknown)], pending)
        assert answers(result) == [expected(*case) for case in known]

    def test_each_draw_takes_that_of_its_row(self, of: Sampler) -> None:
        sampling = Sampling(0, presence_penalty=9.0)
        wanted = [Wanted(Draw(0, sampling, history=array("i", [3, -1]), prompt_len=1), row, 2) for row in (1, 0, 1)]
        assert answers(drawn(of, np.stack([CLEAR, CLEAR]), wanted, [1, 4])[0]) == [1, 4, 1]


def with_last(case: Case, token: int) -> Case:
    logits, draw, place = case
    assert draw.history is not None
    history = draw.history[:place]
    history[-1] = token
    return logits, draw._replace(history=history), place


def test_a_history_can_grow_while_its_draw_is_on_its_way() -> None:
    history = array("i", [0, 1])
    draw = Draw(0, Sampling(presence_penalty=1.0), history=history, prompt_len=1)
    described = describing.write([Wanted(draw, 0, 2)], rows=1, vocab=5, put=lambda values: torch.from_numpy(values))
    history.append(5)
    assert described.penalties is not None
    assert described.penalties.histories.tolist() == [[1]]


def test_what_nobody_asks_for_is_no_table() -> None:
    described = describing.write([Wanted(Draw(0, GREEDY), 0, 0)], rows=1, vocab=5, put=_never)
    assert described == describing.Draws(1, *(None,) * 9)


def _never(values: NDArray[np.uint8]) -> Tensor:
    raise AssertionError("there is nothing to upload")


@given(key=st.integers(0, (1 << 64) - 1))
def test_noise_is_that_of_the_reference(key: int) -> None:
    from chairlift.execute.torch.sampler import _gumbel

    bits = torch.from_numpy(np.array([key], dtype=np.uint64).view(np.int64))
    mine = _gumbel(bits.unsqueeze(1), torch.arange(300))[0].numpy()
    assert np.abs(mine - noise.gumbel(key, np.arange(300))).max() < 1e-13


def assert_tells_the_same(told: Logprobs | None, wanted: Logprobs) -> None:
    assert told is not None
    assert told.rank == wanted.rank
    assert [token for token, _ in told.top] == [token for token, _ in wanted.top]
    assert told.chosen == pytest.approx(wanted.chosen, abs=1e-9)
    assert [log for _, log in told.top] == pytest.approx([log for _, log in wanted.top], abs=1e-9)
