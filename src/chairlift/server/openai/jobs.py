"""From tokens to a job: limits, sampling, stopping, and names. Knows the service; not how an answer is shaped or sent."""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.types import Limits, Request, Sampling, Stopping
from chairlift.core.wishes import Wishes, sampling
from chairlift.server.errors import ApiError, bad_request, unknown_model
from chairlift.server.generate import Choice
from chairlift.server.openai.prompts import check_ids
from chairlift.server.openai.schema import GenerationBody
from chairlift.server.openai.stream import Form, Job
from chairlift.server.service import Service
from chairlift.server.settings import Settings
from chairlift.server.tenants import Asker
from chairlift.text.tokenizer import Tokenizer

FRESH_SEED = -1
"""A seed that asks for none, as in vLLM."""
SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, and what is echoed before each of its answers."""

    tokens: list[int]
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The longest answer: what the client `asked` for in `field`, or else the `default`, cut to what fits (None: all of it)."""

    asked: int | None
    default: int | None = None
    field: str = "max_tokens"


def named_model(service: Service, model: str | None) -> str:
    """The name to answer with: the one that was asked for, or the first. Raises `ApiError` 404 for one that is not served."""
    if model is None:
        return service.names[0]
    if model not in service.names:
        raise unknown_model(service.names)
    return model


def make_job(
    service: Service,
    body: GenerationBody,
    form: Form,
    prompts: Sequence[Prompt],
    *,
    id: str,  # noqa: A002 (the name on the wire)
    arrival: float,
    asker: Asker,
    wanted: Wanted,
    param: str,
) -> Job:
    """`n` choices for every prompt. Raises `ApiError` 400 if one cannot fit (`param` is the field that prompts came from).

    The index of a choice counts through the first prompt's, then the second's, and so on.
    The engine's own ids are new each time, so two requests that were given the same id do not meet.
    """
    model = named_model(service, body.model)
    most = service.client.config.max_num_seqs
    if body.samples > most:
        raise bad_request(f"`n` must not be more than {most}: so many answers can be made at the same time", param="n")
    requests = [
        _request(service, body, asker, prompt.tokens, f"{id}-{place}-{service.world.token()}", arrival, wanted, param)
        for place, prompt in enumerate(prompts)
    ]
    choices = tuple(
        Choice(
            index=place * body.samples + sample,
            request=request,
            sample=sample,
            lead=prompt.echo,
            stops=tuple(body.stop or ()),
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skips_specials,
        )
        for place, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        for sample in range(body.samples)
    )
    return Job(
        id=id,
        model=model,
        created=int(service.world.now()),
        fingerprint=service.fingerprint,
        form=form,
        choices=choices,
        prompt_tokens=sum(len(prompt.tokens) for prompt in prompts),
        stream=bool(body.stream),
        usage_at_end=body.usage_at_end,
        usage_always=body.usage_always,
        owner=asker.owner,
        tenant=asker.tenant,
    )


def _request(
    service: Service,
    body: GenerationBody,
    asker: Asker,
    prompt: list[int],
    name: str,
    arrival: float,
    wanted: Wanted,
    param: str,
) -> Request:
    max_tokens = _answer_room(service, len(prompt), wanted, param)
    return Request(
        id=name,
        prompt=tuple(prompt),
        stopping=_stopping(service.tokenizer, body, max_tokens),
        sampling=_sampling(service, body),
        arrival=arrival,
        priority=asker.allowed(body.priority or 0),
        tenant=asker.tenant,
        ttft_target_s=_target(service.settings, body),
        cache_salt=asker.salted(body.cache_salt or ""),
        limits=_limits(service.settings, body, arrival),
        samples=body.samples,
    )


def _target(settings: Settings, body: GenerationBody) -> float | None:
    """When the first token is wanted, in seconds from arrival. What a request says of itself goes before its class."""
    classes = {one.name: one for one in settings.slo_classes}
    if body.slo_class is not None and body.slo_class not in classes:
        known = f"this server has {', '.join(classes)}" if classes else "this server has none"
        raise bad_request(f"there is no such `slo_class`: {known}", param="slo_class")
    if body.deadline_ms is not None:
        return body.deadline_ms / 1000
    return None if body.slo_class is None else classes[body.slo_class].ttft_s


def _limits(settings: Settings, body: GenerationBody, arrival: float) -> Limits:
    """The client may shorten the times that the operator allows."""
    queue_s = _shorter(body.queue_timeout_s, settings.queue_timeout_s)
    total_s = _shorter(body.timeout_s, settings.request_timeout_s)
    return Limits(
        queue_until=None if queue_s is None else arrival + queue_s,
        finish_until=None if total_s is None else arrival + total_s,
        stall_s=_shorter(body.stall_timeout_s, settings.stall_timeout_s),
    )


def _shorter(asked_s: float | None, allowed_s: float) -> float | None:
    """Of two times, 0 and None being no limit."""
    return min((time_s for time_s in (asked_s, allowed_s) if time_s), default=None)


def _answer_room(service: Service, prompt_len: int, wanted: Wanted, param: str) -> int:
    longest = service.client.longest
    room = longest - prompt_len
    if prompt_len == 0:
        raise bad_request("the prompt is empty: it has no tokens", param=param)
    if room < 1:
        raise _too_long(service, f"the prompt has {prompt_len} tokens, which leaves no room for an answer", param)
    most = service.settings.max_output_tokens
    if wanted.asked is None:
        default = service.settings.default_max_tokens or wanted.default
        return min(length for length in (room, default, most) if length is not None)
    if most is not None and wanted.asked > most:
        message = f"`{wanted.field}` must not be more than {most}: this server gives no longer answers"
        raise bad_request(message, param=wanted.field)
    if wanted.asked > room:
        raise _too_long(service, f"the prompt has {prompt_len} tokens and the answer may have {wanted.asked}", param)
    return wanted.asked


def _too_long(service: Service, what: str, param: str) -> ApiError:
    longest, config = service.client.longest, service.client.config
    limit = "the context of this model" if longest == config.max_model_len else "the whole KV cache of this server"
    return bad_request(f"{what}; {limit} is {longest} tokens", param=param)


def _stopping(tokenizer: Tokenizer, body: GenerationBody, max_tokens: int) -> Stopping:
    stop_ids = body.stop_token_ids or []
    check_ids(tokenizer, stop_ids, "stop_token_ids")
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(f"`min_tokens` must not be more than the {max_tokens} tokens of the answer", param="min_tokens")
    eos = frozenset[int]() if body.ignore_eos else frozenset(tokenizer.eos_ids)
    return Stopping(max_tokens, min_tokens, eos, frozenset(stop_ids))


def _sampling(service: Service, body: GenerationBody) -> Sampling:
    seed = None if body.seed in (None, FRESH_SEED) else body.seed % SEEDS
    biases = body.logit_bias or ()
    check_ids(service.tokenizer, [token for token, _ in biases], "logit_bias")
    wishes = Wishes(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=biases,
        logprobs=body.best_logprobs,
    )
    return sampling(wishes, service.defaults, Sampling(seed=service.world.seed()))
