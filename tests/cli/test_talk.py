import pytest
from executors import ShadowExecutor
from scripted_engine import scripted
from tiny import END, script

from chairlift.cli.talk import DEFAULT_TEMPERATURE, Asked, Said, Talker
from chairlift.compose import Engine
from chairlift.core.errors import ExecutorLost, NeverFits, Unavailable

DEFAULTS = Asked()


async def said(parts: Engine, prompt: str = "hi\n", asked: Asked = DEFAULTS) -> tuple[Said, list[str]]:
    pieces: list[str] = []
    talker = Talker(parts, asked)
    try:
        return await talker.ask(talker.plain_prompt(prompt), pieces.append), pieces
    finally:
        await talker.close()


async def test_an_answer_ends_before_its_end_token() -> None:
    answer, pieces = await said(scripted(script("Paris", END, "more")))
    assert ("".join(pieces), answer.text, answer.finish, answer.tokens) == ("Paris", "Paris", "stop", 6)


async def test_an_answer_ends_before_a_stop_string() -> None:
    answer, _ = await said(scripted(script("Paris, of course")), asked=Asked(stops=(", ",)))
    assert (answer.text, answer.finish, answer.tokens) == ("Paris", "stop", 7)


async def test_a_wished_length_is_kept() -> None:
    answer, _ = await said(scripted(), asked=Asked(max_tokens=9))
    assert (len(answer.text), answer.finish) == (9, "length")


async def test_without_a_wish_the_context_is_the_limit() -> None:
    answer, _ = await said(scripted())
    assert (answer.prompt_tokens + answer.tokens, answer.finish) == (256, "length")


async def test_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(NeverFits, match="256"):
        await said(scripted(), prompt="x" * 256)


async def test_an_engine_that_is_lost_is_told_from_an_answer_that_fails() -> None:
    """Nobody can go on talking to it."""
    with pytest.raises(Unavailable, match="the engine has failed: rank 1 was killed"):
        await said(scripted(lost))


def lost(prefix: tuple[int, ...]) -> int:
    raise ExecutorLost("rank 1 was killed")


async def test_a_conversation_shares_its_beginning_from_turn_to_turn() -> None:
    talker = Talker(scripted(script("ok", END)), Asked())
    messages = [{"role": "user", "content": "a question of some length"}]
    try:
        first = await talker.ask(talker.chat_prompt(messages), lambda _: None)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "another"}]
        second = await talker.ask(talker.chat_prompt(messages), lambda _: None)
    finally:
        await talker.close()
    assert (first.cached, second.cached) == (0, first.prompt_tokens // 16 * 16)


async def test_a_model_that_recommends_nothing_is_a_little_daring() -> None:
    parts = scripted(script("ok", END))
    await said(parts)
    assert isinstance(parts.executor, ShadowExecutor)
    assert parts.executor.plans[0].work[0].draws[0].sampling.temperature == DEFAULT_TEMPERATURE


def test_a_single_token_has_no_rate() -> None:
    assert Said("x", "stop", 1, 1, 0, 0.5, 0.5).tokens_per_s is None
