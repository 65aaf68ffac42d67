"""Prompts have in common what their hash ids have in common, and nothing else."""

from chairlift.workload.requests import FIRST_ID, prompt, request
from chairlift.workload.traces import Arrival


def test_an_id_is_512_equal_tokens_and_the_last_one_the_rest():
    tokens = prompt(Arrival(0.0, 514, 1, (7, 3)))
    assert tokens == (FIRST_ID + 7,) * 512 + (FIRST_ID + 3,) * 2


def test_without_ids_a_prompt_has_its_length():
    assert prompt(Arrival(0.0, 5, 1)) == (0,) * 5


def test_a_request_comes_when_it_came_and_may_write_what_its_client_asked_for():
    made = request(Arrival(2.5, 3, 10), 4, max_tokens=100, eos_ids=frozenset({1}))
    assert (made.id, made.arrival, len(made.prompt)) == ("4", 2.5, 3)
    assert (made.stopping.max_tokens, made.stopping.eos_ids) == (100, frozenset({1}))
