"""Guesses of answers' lengths."""

from virtual import request

from chairlift.core.types import Finish, Sequence
from chairlift.schedule import lengths
from chairlift.schedule.lengths import LEAST_ANSWERS, Lengths
from chairlift.schedule.policy import Past


def ended(generated: int, *, prompt: int = 8, tenant: str = "a", finish: Finish = "stop") -> Sequence:
    sequence = Sequence(request("r", range(prompt), 100, tenant=tenant))
    sequence.tokens.extend(range(generated))
    sequence.finish = finish
    return sequence


def taught(*answers: Sequence) -> Lengths:
    learner = Lengths()
    learner.observe(Past(None, 0.0, answers))
    return learner


def expected(learner: Lengths, *, prompt: int = 8, tenant: str = "a", most: int = 100) -> float:
    return learner.expected(request("new", range(prompt), most, tenant=tenant))


def test_without_experience_an_answer_gets_as_long_as_it_may():
    assert expected(taught()) == 100


def test_a_few_answers_are_no_experience():
    assert expected(taught(*[ended(10)] * (LEAST_ANSWERS - 1))) == 100


def test_the_mean_of_like_requests():
    assert expected(taught(*[ended(10), ended(30)] * LEAST_ANSWERS)) == 20


def test_a_tenant_of_its_own_kind_is_told_from_the_others():
    learner = taught(*[ended(10, tenant="a"), ended(90, tenant="b")] * LEAST_ANSWERS)
    assert (expected(learner, tenant="a"), expected(learner, tenant="b")) == (10, 90)


def test_an_unknown_tenant_is_like_others_with_such_prompts():
    learner = taught(*[ended(10, prompt=8), ended(90, prompt=200)] * LEAST_ANSWERS)
    assert (expected(learner, tenant="?", prompt=9), expected(learner, tenant="?", prompt=150)) == (10, 90)


def test_an_unknown_kind_is_like_all_others():
    assert expected(taught(*[ended(10)] * LEAST_ANSWERS), tenant="?", prompt=500) == 10


def test_no_guess_is_above_the_limit():
    assert expected(taught(*[ended(50)] * LEAST_ANSWERS), most=20) == 20


def test_answers_that_were_broken_off_teach_nothing():
    assert expected(taught(*[ended(3, finish="abort")] * LEAST_ANSWERS)) == 100


def test_old_answers_are_forgotten_little_by_little():
    learner = taught(*[ended(10)] * 1000, *[ended(90)] * 4 * lengths.MEMORY)
    assert expected(learner) > 88


def test_only_so_many_means_are_kept():
    learner = taught(*(ended(10, tenant=f"t{number}") for number in range(2 * lengths.MAX_MEANS)))
    assert len(learner._means) == lengths.MAX_MEANS
