"""What a client wishes of a draw, completed by what the model's files recommend and by a default for the rest.

Knows the names that both use; knows neither where the wishes were read nor whether they are in range.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from chairlift.core.types import Sampling


@dataclass(frozen=True, slots=True)
class Wishes:
    """How tokens are to be drawn, as `Sampling` has it. None: not said."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


def sampling(wishes: Wishes, recommended: Mapping[str, float], otherwise: Sampling) -> Sampling:
    """Wishes go before what is recommended for the model, and that before `otherwise`. A top-k below 0 is none."""

    def pick(wish: float | None, name: str, default: float) -> float:
        return recommended.get(name, default) if wish is None else wish

    return Sampling(
        temperature=float(pick(wishes.temperature, "temperature", otherwise.temperature)),
        top_k=max(0, int(pick(wishes.top_k, "top_k", otherwise.top_k))),
        top_p=float(pick(wishes.top_p, "top_p", otherwise.top_p)),
        min_p=float(pick(wishes.min_p, "min_p", otherwise.min_p)),
        seed=otherwise.seed if wishes.seed is None else wishes.seed,
        presence_penalty=float(pick(wishes.presence_penalty, "presence_penalty", otherwise.presence_penalty)),
        frequency_penalty=float(pick(wishes.frequency_penalty, "frequency_penalty", otherwise.frequency_penalty)),
        repetition_penalty=float(pick(wishes.repetition_penalty, "repetition_penalty", otherwise.repetition_penalty)),
        logit_bias=wishes.logit_bias or otherwise.logit_bias,
        logprobs=otherwise.logprobs if wishes.logprobs is None else wishes.logprobs,
    )
