"""What is computed before there are requests: steps of every sort, so that all kernels are compiled, and nothing stays."""

import numpy as np
import pytest
from tiny_decoders import PLAIN, VARIANTS, random_tokens, random_weights, row
from torch_executors import PLAIN_CHOICE, torch_executor

from chairlift.core.types import PENDING, Plan
from chairlift.execute.torch.draws import Draws, Wanted, write
from chairlift.execute.torch.warming import plans


def described(plan: Plan) -> Draws:
    (work,) = plan.work
    wanted = [Wanted(draw, 0, work.end) for draw in work.draws]
    return write(wanted, rows=1, vocab=PLAIN.vocab, put=PLAIN_CHOICE.device.put)


def test_there_are_prompts_and_next_tokens_with_few_draws_and_with_several() -> None:
    work = [plan.work[0] for plan in plans(vocab=PLAIN.vocab, block_size=16, max_tokens=512)]
    assert [(list(one.tokens), len(one.draws)) for one in work] == [([0, 0], 1), ([PENDING], 1), ([0, 0], 4), ([PENDING], 4)]


@pytest.mark.parametrize("number", range(4))
def test_every_draw_asks_for_everything(number: int) -> None:
    """But for min-p, without which noise has a kernel of its own."""
    draws = described(list(plans(vocab=PLAIN.vocab, block_size=16, max_tokens=512))[number])
    tables = (draws.biases, draws.penalties, draws.bans, draws.masks, draws.best, draws.nuclei, draws.noisy, draws.telling)
    assert all(table is not None and len(table.draws) == draws.count for table in tables)
    assert draws.noisy is not None
    assert (draws.noisy.min_p is None) == (number % 2 == 0)


@pytest.mark.parametrize(("block_size", "max_tokens"), [(16, 512), (1, 512), (1, 1)])
def test_they_can_be_computed_wherever_a_request_can(block_size: int, max_tokens: int) -> None:
    executor = torch_executor(
        PLAIN, random_weights(PLAIN), num_blocks=2, block_size=block_size, max_tokens=max_tokens, max_rows=1
    )
    executor.warm_up()
    assert executor.computed == (0.0, 0.0)


def test_nothing_stays_of_them() -> None:
    description = VARIANTS["everything"]
    tokens, weights = random_tokens(20), random_weights(description)
    warm, cold = (torch_executor(description, weights) for _ in range(2))
    warm.warm_up()
    np.testing.assert_array_equal(warm.logits([row(tokens, [0, 1])]), cold.logits([row(tokens, [0, 1])]))
