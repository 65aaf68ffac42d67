import pytest
from scripted_engine import scripted
from tiny import END, script

from chairlift.cli.talk import DEFAULT_TEMPERATURE, Said, Talker, Wishes
from chairlift.compose import Engine
from chairlift.core.errors import NeverFits
from chairlift.core.types import Sampling

DEFAULTS = Wishes()


async def said(parts: Engine, prompt: str = "hi\n", wishes: Wishes = DEFAULTS) -> tuple[Said, list[str]]:
    pieces: list[str] = []
    talker = Talker(parts, wishes)
    try:
        return await talker.ask(talker.plain_prompt(prompt), pieces.append), pieces
    finally:
        await talker.close()


async def test_an_answer_ends_before_its_end_token() -> None:
    answer, pieces = await said(scripted(script("Paris", END, "more")))
    assert ("".join(pieces), answer.text, answer.finish, answer.tokens) == ("Paris", "Paris", "stop", 5)


async def test_an_answer_ends_before_a_stop_string() -> None:
    answer, _ = await said(scripted(script("Paris, of course")), wishes=Wishes(stops=(", ",)))
    assert (answer.text, answer.finish, answer.tokens) == ("Paris", "stop", 7)


async def test_a_wished_length_is_kept() -> None:
    answer, _ = await said(scripted(), wishes=Wishes(max_tokens=9))
    assert (len(answer.text), answer.finish) == (9, "length")


async def test_without_a_wish_the_context_is_the_limit() -> None:
    answer, _ = await said(scripted())
    assert (answer.prompt_tokens + answer.tokens, answer.finish) == (256, "length")


async def test_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(NeverFits, match="256"):
        await said(scripted(), prompt="x" * 256)


async def test_a_conversation_shares_its_beginning_from_turn_to_turn() -> None:
    talker = Talker(scripted(script("ok", END)), Wishes())
    messages = [{"role": "user", "content": "a question of some length"}]
    try:
        first = await talker.ask(talker.chat_prompt(messages), lambda _: None)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "another"}]
        second = await talker.ask(talker.chat_prompt(messages), lambda _: None)
    finally:
        await talker.close()
    assert (first.cached, second.cached) == (0, first.prompt_tokens // 16 * 16)


def test_wishes_win_over_recommendations_and_those_over_our_defaults() -> None:
    recommended = {"temperature": 0.3, "top_k": 40.0}
    assert Wishes(top_k=5, seed=9).sampling(recommended, seed=1) == Sampling(temperature=0.3, top_k=5, seed=9)
    assert Wishes().sampling({}, seed=1) == Sampling(temperature=DEFAULT_TEMPERATURE, seed=1)


def test_a_single_token_has_no_rate() -> None:
    assert Said("x", "stop", 1, 1, 0, 0.5, 0.5).tokens_per_s is None
