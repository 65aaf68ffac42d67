"""Captured steps: which steps are, how they are padded, and that they answer as steps do whose kernels are launched each.

On the CPU a step is captured by writing down all of its operations, and computed by doing them again, letter by letter.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from captures import DenseAttention, WritingRecorder
from engines import config
from executor_cases import CASE_BLOCK, reference_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from in_flight import BLOCKS_EACH, SAMPLINGS, Text, answers
from numpy.typing import NDArray
from ranks import together
from tiny_decoders import PLAIN, VARIANTS, random_tokens, random_weights, row
from torch_executors import PLAIN_CHOICE, choice, torch_executor
from virtual import Ride, request

from chairlift.core.types import PENDING, Plan, Work
from chairlift.engine.core import EngineCore
from chairlift.execute.reference import ReferenceExecutor
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.graphs import MOST_ROWS, sizes
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.group import Group
from chairlift.execute.torch.sizing import captured_bytes, footprint
from chairlift.models.description import Description

EVERYTHING = VARIANTS["everything"]
WEIGHTS = random_weights(EVERYTHING)
ROWS = 11
"""Captured are 1, 2, 4, 8 and 11."""


def executor(
    description: Description = EVERYTHING, *, recorder: WritingRecorder | None, max_rows: int = ROWS, max_tokens: int = 512
) -> TorchExecutor:
    return torch_executor(
        description,
        random_weights(description),
        max_rows=max_rows,
        max_tokens=max_tokens,
        attention=DenseAttention(scale=description.attention_scale),
        recorder=recorder,
    )


@cache
def shared(*, captures: bool) -> TorchExecutor:
    """For many examples: nobody reads what another one has left."""
    return executor(recorder=WritingRecorder() if captures else None)


def replays(recorder: WritingRecorder) -> list[int]:
    """How often each captured step was launched, the one of most rows first."""
    return [captured.replays for captured in recorder.captured]


def texts(count: int) -> list[Work]:
    """Prompts of different lengths, each in blocks of its own."""
    return [
        row(random_tokens(3 + at, seed=at), range(BLOCKS_EACH * at, BLOCKS_EACH * (at + 1)), seq_id=str(at))
        for at in range(count)
    ]


def nexts(prompts: list[Work], token: int = 7) -> list[Work]:
    return [row([token + at], work.blocks, seq_id=work.seq_id, start=work.end) for at, work in enumerate(prompts)]


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sizes_are_close_together_where_there_are_few_rows() -> None:
    assert sizes(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert sizes(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    assert sizes(9999)[-9:] == (256, 288, 320, 352, 384, 416, 448, 480, 512)


@given(most=st.integers(1, 2000))
def test_there_is_a_size_for_every_number_of_rows_and_never_one_too_large(most: int) -> None:
    captured = sizes(most)
    assert list(captured) == sorted(set(captured))
    assert captured[-1] == min(most, MOST_ROWS)
    assert captured[0] == 1


# ── which steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

PADS = (row([9], seq_id="p", pad=True), row([9, 9], seq_id="q", pad=True))


@pytest.mark.parametrize(
    ("work", "taken"),
    [
        (nexts(texts(1)), 1),
        (nexts(texts(2)), 2),
        (nexts(texts(3)), 4),
        (nexts(texts(5)), 8),
        (nexts(texts(9)), 11),
        (nexts(texts(11)), 11),
        ([*nexts(texts(1)), *PADS], 4),
        ([*nexts(texts(6)), *PADS], 11),
        ([*nexts(texts(9)), *PADS], None),
        ([PADS[1]], 2),
        ([nexts(texts(1))[0]._replace(draws=())], 1),
        (texts(1), None),
        ([*nexts(texts(2)), row([1, 2], [30], seq_id="new")], None),
    ],
)
def test_a_step_is_captured_if_all_rows_have_one_token_and_pads_find_room(work: list[Work], taken: int | None) -> None:
    recorder = WritingRecorder()
    launched = executor(recorder=recorder)
    launched.launch(Plan(0, tuple(work)))
    launched.collect()
    assert replays(recorder) == [int(size == taken) for size in (11, 8, 4, 2, 1)]


def test_no_step_is_captured_that_is_larger_than_there_may_be() -> None:
    recorder = WritingRecorder()
    executor(recorder=recorder, max_rows=20, max_tokens=3)
    assert len(recorder.captured) == len(sizes(3)) == 3


def test_capturing_is_told_from_the_first_to_the_last() -> None:
    told = list[tuple[int, int]]()
    attention, chosen = DenseAttention(scale=PLAIN.attention_scale), replace(PLAIN_CHOICE, eager=None)
    captured = torch_executor(PLAIN, random_weights(PLAIN), max_rows=3, choice=chosen, attention=attention)
    captured.capture(WritingRecorder(), on_graph=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def bits(executor: TorchExecutor) -> torch.Tensor:
    """A copy of keys and values, those that nobody has written included."""
    return executor._kv.view(torch.int32).clone()


# ── what they answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=10)
@given(data=st.data())
def test_any_plans_are_answered_the_same(data: st.DataObject) -> None:
    """Tokens are. Logits of a step of other shapes may differ in their last bits."""
    count = data.draw(st.integers(1, ROWS))
    prompts = [
        (data.draw(st.sampled_from(SAMPLINGS)), random_tokens(data.draw(st.integers(1, 9)), seed=number))
        for number in range(count)
    ]
    some = st.lists(st.integers(0, count - 1), min_size=1, unique=True)
    tokens = st.sampled_from([1, 1, 1, 2, 9])
    steps = [[(at, data.draw(tokens)) for at in step] for step in data.draw(st.lists(some, min_size=3, max_size=8))]
    asked = {"choices": data.draw(st.integers(1, 3)), "pads": data.draw(st.lists(st.integers(0, 3), max_size=8))}
    eager = answers(shared(captures=False), prompts, steps, depth=1, **asked)
    for depth in (1, 2):
        captured = answers(shared(captures=True), prompts, steps, depth=depth, **asked)
        assert [(text.tokens, text.drawn) for text in captured] == [(text.tokens, text.drawn) for text in eager]
        np.testing.assert_allclose(logprobs(captured), logprobs(eager), rtol=0, atol=1e-4)


def logprobs(texts: list[Text]) -> list[float]:
    return [log for text in texts for told in text.told for one in told for log in (one.chosen, *(log for _, log in one.top))]


@settings(max_examples=10)
@given(count=st.integers(1, ROWS), before=st.integers(0, ROWS))
def test_logits_have_the_bits_of_an_eager_step_of_as_many_rows(count: int, before: int) -> None:
    """Whatever step came before, whose padding and contexts were others."""
    eager, captured = shared(captures=False), shared(captures=True)
    size = next(size for size in sizes(ROWS) if size >= count)
    prompts = texts(ROWS)
    for one in (eager, captured):
        one.logits(prompts)
    if before:
        captured.logits(nexts(prompts[:before], token=30))
    expected = eager.logits(nexts(prompts[:size]))[:count]
    np.testing.assert_array_equal(captured.logits(nexts(prompts[:count])), expected)


def test_rows_that_do_not_draw_are_passed_over() -> None:
    recorder = WritingRecorder()
    eager, captured = executor(recorder=None), executor(recorder=recorder)
    prompts = texts(4)
    work = [one._replace(draws=one.draws if at in (0, 3) else ()) for at, one in enumerate(nexts(prompts))]
    for one in (eager, captured):
        one.logits(prompts)
    np.testing.assert_array_equal(captured.logits(work), eager.logits(nexts(prompts))[[0, 3]])
    assert sum(replays(recorder)) == 1


def test_padding_stores_nothing() -> None:
    """All blocks are in use, and the one that padding would write to is read afterwards."""
    captured, prompts = executor(recorder=WritingRecorder()), texts(ROWS)
    captured.logits(prompts)
    kept = bits(captured)
    captured.logits(nexts(prompts[8:9]))
    changed = (bits(captured) != kept).any(dim=-1).any(dim=-1).any(dim=2).any(dim=0)
    assert changed.nonzero().tolist() == [[BLOCKS_EACH * 8, len(prompts[8].tokens)]]


def test_capturing_stores_nothing() -> None:
    captured, prompts = executor(recorder=WritingRecorder()), texts(3)
    captured.logits(prompts)
    kept = bits(captured)
    captured.capture(WritingRecorder())
    assert torch.equal(bits(captured), kept)


def test_logits_that_were_handed_out_stay() -> None:
    captured, prompts = executor(recorder=WritingRecorder()), texts(2)
    captured.logits(prompts)
    first = captured.logits(nexts(prompts))
    copy = first.copy()
    captured.logits(nexts(prompts, token=40))
    np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_through_the_scheduler_are_those_of_the_reference(depth: int) -> None:
    """With preemptions, so that what was decoded is computed again as a prompt."""
    recorder = WritingRecorder()
    settings = {"block_size": CASE_BLOCK, "num_blocks": 11, "max_model_len": 128, "max_num_seqs": 4}
    settings |= {"max_num_batched_tokens": 24}
    asked = [
        request(str(at), random_tokens(20 + 5 * at, seed=at), 30, arrival=float(at), sampling=sampling)
        for at, sampling in enumerate(SAMPLINGS)
    ]
    reference = ReferenceExecutor.load(EVERYTHING, WEIGHTS, num_blocks=11, block_size=CASE_BLOCK)
    captured = torch_executor(
        EVERYTHING,
        WEIGHTS,
        num_blocks=11,
        max_rows=4,
        attention=DenseAttention(scale=EVERYTHING.attention_scale),
        recorder=recorder,
    )
    rides = [
        Ride(EngineCore(config(**settings, depth=asked_for), one)) for one, asked_for in ((captured, depth), (reference, 1))
    ]
    for ride in rides:
        ride.submit(*asked)
        ride.run()
    assert rides[0].preemptions > 0
    assert min(replays(recorder)) > 0
    assert rides[0].tokens == rides[1].tokens


def test_ranks_that_compute_together_capture_what_they_say_to_each_other() -> None:
    def rank(group: Group) -> list[Text]:
        ours = torch_executor(
            EVERYTHING,
            WEIGHTS,
            max_rows=2,
            attention=DenseAttention(scale=EVERYTHING.attention_scale),
            recorder=WritingRecorder(),
            group=group,
        )
        return answers(ours, prompts, steps, depth=2)

    prompts = [(SAMPLINGS[at], random_tokens(5 + at, seed=at)) for at in range(2)]
    steps = [[(0, 9), (1, 9)], *([[(1, 1), (0, 1)]] * 4)]
    alone = answers(shared(captures=False), prompts, steps, depth=1)
    for texts in together(3, rank):
        assert [text.tokens for text in texts] == [text.tokens for text in alone]


def test_triton_s_attention_is_captured() -> None:
    """In its interpreter, so the model is small and so are the steps."""
    recorder, tokens = WritingRecorder(), random_tokens(20)
    captured = torch_executor(PLAIN, random_weights(PLAIN), max_rows=2, choice=choice(attention="triton"), recorder=recorder)
    captured.logits([row(tokens[:19], [7, 2])])
    got = captured.logits([row(tokens[19:], [7, 2], start=19)])
    np.testing.assert_allclose(got[0], reference_logits(PLAIN, random_weights(PLAIN), tokens), rtol=2e-4, atol=2e-4)
    assert replays(recorder) == [0, 1]


def test_after_a_failure_captured_steps_go_on() -> None:
    captured, recorder = executor(recorder=(told := WritingRecorder())), told
    prompts = texts(2)
    captured.launch(Plan(0, tuple(prompts)))
    with pytest.raises(AssertionError, match="no such block"):
        captured.launch(Plan(1, (row([PENDING], [99], start=3, seq_id="0"),)))
    expected: NDArray[np.float32] = executor(recorder=None).logits(prompts)
    np.testing.assert_allclose(captured.logits(prompts), expected, rtol=2e-4, atol=2e-4)
    captured.logits(nexts(prompts))
    assert sum(replays(recorder)) == 1


# ── what they hold ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def taken(chosen: Choice) -> int:
    return footprint(EVERYTHING, chosen, max_tokens=300, max_rows=40, longest=64, block_size=16).work_bytes


def test_what_captured_steps_hold_is_in_what_a_step_works_in() -> None:
    captured = replace(choice(), eager=None)
    held = captured_bytes(EVERYTHING, captured.captured(40), itemsize=4)
    told = [taken(one) for one in (captured, choice())]
    assert told[0] - told[1] == held
    executor = torch_executor(
        EVERYTHING, WEIGHTS, max_rows=40, choice=captured, recorder=WritingRecorder(), attention=DenseAttention(scale=0.3)
    )
    assert held > executor._graphs._logits.nbytes == 40 * EVERYTHING.vocab * 4


def test_where_nothing_is_captured_nothing_is_held() -> None:
    executor = torch_executor(EVERYTHING, WEIGHTS)
    assert executor._graphs._logits.nbytes == captured_bytes(EVERYTHING, (), itemsize=4) == 0


# ── what the twin of a captured step finds ────────────────────────────────────────────────────────────────────────────────


def test_attention_that_counts_on_the_host_s_contexts_cannot_be_captured() -> None:
    """The first steps look into blocks as long as the longest context, and so would those that are launched again."""
    captured = torch_executor(PLAIN, random_weights(PLAIN), max_rows=1, recorder=WritingRecorder(), max_tokens=4)
    captured.logits([row([1, 2, 3], [5])])
    got = captured.logits([row([4], [5], start=3)])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(got[0], reference_logits(PLAIN, random_weights(PLAIN), [1, 2, 3, 4]), rtol=2e-4, atol=2e-4)


def add(place: torch.Tensor, number: int) -> None:
    place += number


def test_a_step_that_finds_other_tensors_is_no_longer_the_same() -> None:
    recorder, places = WritingRecorder(), [torch.zeros(3)]
    captured = recorder.capture(lambda: add(places[0], 1))
    captured.replay()
    places[0] = torch.zeros(3)
    with pytest.raises(AssertionError, match="would do something else"):
        captured.replay()


def test_a_step_that_finds_other_numbers_of_the_host_is_no_longer_the_same() -> None:
    number, place = [1], torch.zeros(3)
    captured = WritingRecorder().capture(lambda: add(place, number[0]))
    number[0] = 2
    with pytest.raises(AssertionError, match="would do something else"):
        captured.replay()


def test_a_step_that_waits_for_the_device_cannot_be_captured() -> None:
    place = torch.zeros(3)
    with pytest.raises(AssertionError, match="waits for the device"):
        WritingRecorder().capture(lambda: add(place, int(place.sum().item())))
