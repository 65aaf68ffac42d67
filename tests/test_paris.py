"""What a newcomer does first: serve the default model, ask it for the capital of France."""

import signal
from collections.abc import Generator

import httpx
import openai
import pytest
from processes import END_S, chairlift, until

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    with chairlift("serve", "--port", "0", "--max-num-seqs", "4") as process:
        yield until(process, "address").split()[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0


def test_the_capital_of_france_is_paris(address: str) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    answer = httpx.post(f"{address}/chat/completions", json=body, timeout=120)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


def test_the_openai_client_streams_the_same(address: str) -> None:
    with openai.OpenAI(base_url=address, api_key="none", timeout=120) as client:
        chunks = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Paris" in text
