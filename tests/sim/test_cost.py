"""What the linear cost counts."""

from array import array

from chairlift.core.types import Draw, Move, Plan, Sampling, Work
from chairlift.sim.cost import Linear, Moody

PROMPT = Work("a", 0, array("i", range(10)), array("i"))
NEXT = Work("b", 7, array("i", [1]), array("i"), (Draw(0, Sampling()),))
PAD = Work("c", 50, array("i", [0]), array("i"), pad=True)


def seconds(cost: Linear, *work: Work) -> float:
    return cost.seconds(Plan(0, work))


def test_every_step_has_its_price():
    assert seconds(Linear(step_s=0.5), PROMPT) == seconds(Linear(step_s=0.5)) == 0.5


def test_all_tokens_are_counted():
    assert seconds(Linear(token_s=1), PROMPT, NEXT) == 11


def test_only_draws_cost_a_draw():
    assert seconds(Linear(draw_s=1), PROMPT, NEXT) == 1


def test_a_row_sees_what_came_before_it_and_itself():
    assert seconds(Linear(position_s=1), PROMPT, NEXT) == 10 + 8


def test_padding_sees_only_itself():
    assert seconds(Linear(position_s=1), PAD) == 1


def test_every_block_that_is_moved_has_its_price():
    moves = (Move("store", 1, 0), Move("copy", 2, 3), Move("load", 0, 4))
    assert Linear(move_s=2).seconds(Plan(0, (PROMPT,), moves=moves)) == 6


def test_moods_multiply_the_price():
    factors = iter([1.0, 2.0, 0.5])
    moody = Moody(Linear(step_s=1.0), lambda: next(factors), slowness=3.0, since_s=9.0, until_s=10.0)
    assert [moody.seconds(Plan(0, ())) for _ in range(3)] == [1.0, 2.0, 0.5]


def test_for_a_while_everything_is_slower():
    moody = Moody(Linear(step_s=1.0), lambda: 1.0, slowness=2.0, since_s=1.0, until_s=3.0)
    assert [moody.seconds(Plan(0, ())) for _ in range(4)] == [1.0, 2.0, 2.0, 1.0]
