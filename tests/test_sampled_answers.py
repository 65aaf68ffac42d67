"""Whole answers of a random model, in a batch that is preempted: every token is what the sampler makes of its own prefix."""

from array import array

import pytest
from cpu_executors import CPU_BLOCK, cpu_executor
from engines import config
from tiny_decoders import PLAIN, random_tokens, random_weights, row
from virtual import Ride, request

from chairlift.core.types import Draw, Logprobs, Request, Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute import sampler
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions

SAMPLINGS = {
    "greedy": Sampling(temperature=0, repetition_penalty=1.3, logprobs=20),
    "drawn": Sampling(seed=5, presence_penalty=0.7, frequency_penalty=0.4, top_k=20, logprobs=0),
    "biased": Sampling(temperature=0.5, seed=6, logit_bias=((3, 4.0), (7, -100.0)), frequency_penalty=1.0, logprobs=3),
    "plain": Sampling(temperature=0),
}
BLOCKS = 11
SETTINGS = config(block_size=CPU_BLOCK, num_blocks=BLOCKS, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=24)


def told_of(ride: Ride, name: str) -> list[Logprobs]:
    return [one for step in ride.steps for output in step.outputs if output.seq_id == name for one in output.logprobs]


def expected(executor: CpuExecutor, one: Request, count: int) -> tuple[list[int], list[Logprobs]]:
    """Tokens and what is told of them, from the logits of one prefix after the other."""
    tokens, told = list(one.prompt), []
    for _ in range(count):
        logits = executor.logits([row(tokens, range(BLOCKS))])[0]
        wanted = Draw(0, one.sampling, history=array("i", tokens), prompt_len=len(one.prompt))
        tokens.append(sampler.draw(logits, wanted, len(tokens)))
        if one.sampling.logprobs is not None:
            told.append(sampler.logprobs(logits, tokens[-1], one.sampling.logprobs))
    return tokens[len(one.prompt) :], told


def test_answers_in_a_batch_are_those_of_the_sampler() -> None:
    asked = [
        request(name, random_tokens(20 + 5 * place, seed=place), 40, arrival=float(place), sampling=sampling)
        for place, (name, sampling) in enumerate(SAMPLINGS.items())
    ]
    with cpu_executor(PLAIN, random_weights(PLAIN), num_blocks=BLOCKS, options=CpuOptions(threads=2)) as executor:
        ride = Ride(EngineCore(SETTINGS, executor))
        ride.submit(*asked)
        ride.run()
        assert ride.preemptions > 0
        for one in asked:
            tokens, told = expected(executor, one, 40)
            assert ride.tokens[one.id] == tokens
            ours = told_of(ride, one.id)
            assert [(a.rank, [best for best, _ in a.top]) for a in ours] == [
                (b.rank, [best for best, _ in b.top]) for b in told
            ]
            assert [a.chosen for a in ours] == pytest.approx([b.chosen for b in told], abs=1e-9)
