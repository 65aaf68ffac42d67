from chairlift.core.types import Sampling
from chairlift.core.wishes import Wishes, sampling

OTHERWISE = Sampling(temperature=0.7, seed=1)


def test_wishes_win_over_recommendations_and_those_over_defaults() -> None:
    chosen = sampling(Wishes(top_k=5, seed=9), {"temperature": 0.3, "top_k": 40.0}, OTHERWISE)
    assert chosen == Sampling(temperature=0.3, top_k=5, seed=9)


def test_without_wishes_and_recommendations_the_defaults_hold() -> None:
    assert sampling(Wishes(), {}, OTHERWISE) == OTHERWISE


def test_zero_is_a_wish() -> None:
    chosen = sampling(Wishes(temperature=0, top_k=0, min_p=0, seed=0), {"temperature": 1, "top_k": 9, "min_p": 0.5}, OTHERWISE)
    assert chosen == Sampling(temperature=0.0)


def test_a_top_k_below_zero_is_none() -> None:
    assert sampling(Wishes(top_k=-1), {"top_k": 40}, OTHERWISE).top_k == 0


def test_a_large_top_k_stays_exact() -> None:
    assert sampling(Wishes(top_k=2**63 - 1), {}, OTHERWISE).top_k == 2**63 - 1


def test_penalties_are_wished_for_and_recommended() -> None:
    wishes = Wishes(presence_penalty=0.5, logit_bias=((3, 1.0),), logprobs=0)
    chosen = sampling(wishes, {"presence_penalty": 2.0, "repetition_penalty": 1.1}, OTHERWISE)
    assert (chosen.presence_penalty, chosen.frequency_penalty, chosen.repetition_penalty) == (0.5, 0.0, 1.1)
    assert (chosen.logit_bias, chosen.logprobs) == (((3, 1.0),), 0)
