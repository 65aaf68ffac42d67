"""The bodies of the API: which fields there are, their types and ranges. Knows no model, no tokens, and no limits of ours.

Types are strict: true is no integer, "5" is no number, 1.5 is no count. An explicit null means "not given". Fields that
nobody knows are accepted and ignored, as clients send many; a field that would change the answer and that is not served yet
is an error which names it, unless it stands at its neutral value (`UNSUPPORTED`).
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from chairlift.core.types import MAX_LOGPROBS
from chairlift.server.errors import bad_request, from_validation

MAX_STOPS = 32
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_PENALTY = 2
MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOL_CALLS = 1024
MAX_ARGUMENT_CHARS = 256 * 1024
MAX_DOCUMENTS = 1024
MAX_PROMPTS = 4096
"""However high an operator sets the limit on prompts of one request."""
MAX_CHOICES = 128
"""Of one prompt: OpenAI's own limit."""
MAX_SALT_CHARS = 128
MAX_COUNT = 2**63 - 1
"""Largest count: far above any limit of ours, and short enough to be quoted in an answer."""
MAX_TIMEOUT_S = 1_000_000
"""Longest time that a request may be given: eleven days."""
MAX_CLASS_CHARS = 64
"""Longest name of a class of requests."""
SEED_RANGE = (-(2**63), 2**64 - 1)

BIASED_ID = re.compile(r"0|[1-9][0-9]{0,9}")

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a client may choose as (part of) the id of its request: it comes back in the body and in a header."""

ANY_BOOL = (False, True)
NONE = ()
"""Neutral only as null."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    # Sampling
    "length_penalty": (1, 1.0),
    "use_beam_search": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "repetition_detection": ({},),
    "thinking_token_budget": NONE,
    # Probabilities
    "prompt_logprobs": NONE,
    "logprob_token_ids": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "return_prompt_text": (False,),
    # Form of the answer
    "response_format": ({"type": "text"}, {}),
    "structured_outputs": ({},),
    "guided_json": NONE,
    "guided_regex": NONE,
    "guided_choice": ([],),
    "guided_grammar": NONE,
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": ANY_BOOL,  # without tools it says nothing
    "functions": ([],),
    "function_call": ("none",),
    "modalities": ([], ["text"]),
    "audio": ({},),
    "web_search_options": NONE,
    "stream_interval": (1,),
    "spaces_between_special_tokens": (True,),
    # Prompt
    "suffix": ("",),
    "prompt_embeds": ([],),
    "truncate_prompt_tokens": NONE,
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
    # Transfer
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
}
"""Fields that are not served yet, with the values at which they say nothing. Null is neutral for all of them."""


def refuse_unsupported(body: Mapping[str, Any], *, more: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises `ApiError` 400 for the first field that asks for what is not there. `more` goes before `UNSUPPORTED`."""
    for name, neutral in {**UNSUPPORTED, **more}.items():
        value = body.get(name)
        if value is not None and not _among(value, neutral):
            raise bad_request(f"`{name}` is not supported yet{_instead(neutral)}", param=name)


def _among(value: Any, neutral: tuple[Any, ...]) -> bool:
    # By type as well: in Python True equals 1, in JSON it does not.
    return any(type(value) is type(candidate) and value == candidate for candidate in neutral)


def _instead(neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return ": leave it out"
    return f": leave it out, or send {json.dumps(neutral[0])}"


# Types of single fields


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _stops(value: list[str]) -> list[str]:
    if not all(value):
        raise ValueError("must not contain an empty string")
    if any(len(stop) > MAX_STOP_CHARS for stop in value):
        raise ValueError(f"must not contain a string of more than {MAX_STOP_CHARS} characters")
    return value


def _seed(value: int) -> int:
    low, high = SEED_RANGE
    if not low <= value <= high:
        raise ValueError(f"must be between {low} and {high}")
    return value


def _salt(value: str) -> str:
    if not 0 < len(value) <= MAX_SALT_CHARS:
        raise ValueError(f"must have 1 to {MAX_SALT_CHARS} characters")
    if any(character in value for character in "@/\\\0"):
        raise ValueError("must not contain @, /, \\ or NUL")
    return value


def _request_id(value: str) -> str:
    if not REQUEST_ID.fullmatch(value):
        raise ValueError("must consist of 1 to 128 letters, digits, and any of . _ : -")
    return value


def _tokens(value: Any) -> list[int]:
    """A list of token ids. Checked by hand, as a prompt may have a hundred thousand of them."""
    ids = cast("list[Any]", value)
    if not all(type(token) is int for token in ids):
        raise ValueError("should hold token ids as integers")
    return ids


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of a token id and its bias. Checked by hand, so that the first wrong entry ends it."""
    if not isinstance(value, dict):
        raise ValueError("should be an object with token ids as keys and numbers as values")
    entries = cast("dict[str, Any]", value)
    if len(entries) > MAX_BIASES:
        raise ValueError(f"may have at most {MAX_BIASES} entries")
    return tuple((_biased_id(key), _bias(bias)) for key, bias in entries.items())


def _biased_id(key: str) -> int:
    if not BIASED_ID.fullmatch(key):
        raise ValueError("has a key that is no token id in decimal digits")
    return int(key)


def _bias(bias: Any) -> float:
    if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
        raise ValueError(f"must have numbers from -{MAX_BIAS} to {MAX_BIAS} as values")
    return float(bias)


def _token_list(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("should be a list of token ids")
    return _tokens(value)


def _prompts(value: Any) -> list[str | list[int]]:
    """One prompt or several, text or token ids, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("should be a string, a list of strings, a list of token ids, or a list of such lists")
    items = cast("list[Any]", value)
    if not items:
        raise ValueError("must not be empty")
    if len(items) > MAX_PROMPTS and not isinstance(items[0], int):
        raise ValueError(f"may have at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, list) for item in items):
        return [_tokens(item) for item in items]
    return [_tokens(items)]


def _content(value: Any) -> Any:
    """Parts of text are joined without anything in between, so that what the client wrote is what the model reads."""
    if not isinstance(value, list):
        return value
    parts = cast("list[Any]", value)
    if len(parts) > MAX_PARTS:
        raise ValueError(f"may have at most {MAX_PARTS} parts")
    return "".join(_part(part) for part in parts)


def _part(value: Any) -> str:
    part = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if part.get("type") not in ("text", "input_text", "output_text"):
        raise ValueError("has a part that is not of type `text`: only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError("has a part of type `text` without a string `text`")
    return text


STRICT = ConfigDict(strict=True, frozen=True, extra="ignore")

# Lists fail at their first wrong item: a body may hold millions, and nobody reads more than the first problems.
Stops = Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOPS), AfterValidator(_stops)]
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False)]
Biases = Annotated[
    tuple[tuple[int, float], ...],
    PlainValidator(_biases),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}}),
]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, description="Seconds from arrival; then the answer ends as it is.")]
QueueTimeout = Annotated[
    float, Field(gt=0, le=MAX_TIMEOUT_S, description="Seconds from arrival in which it must get on; otherwise it is a 408.")
]
StallTimeout = Annotated[
    float,
    Field(gt=0, le=MAX_TIMEOUT_S, description="Seconds between two tokens; an answer that waits for longer ends as it is."),
]
Priority = Annotated[
    int,
    Field(
        description="Lower goes first: 0 is usual, 100 is for batch jobs. One that the server does not allow counts as the"
        " nearest that it does."
    ),
]
Deadline = Annotated[
    float,
    Field(
        gt=0,
        le=MAX_TIMEOUT_S * 1000,
        description="Milliseconds from arrival in which the first token is wanted: no limit, but a wish that the scheduling"
        " policy `deadline` heeds. It goes before that of `slo_class`.",
    ),
]
SloClassName = Annotated[str, Field(max_length=MAX_CLASS_CHARS, description="A class of requests that the server knows.")]
User = Annotated[
    str, Field(description="Whose share of the server it takes, if neither API keys nor a trusted proxy say whose it is.")
]


class Function(BaseModel):
    """The function that an earlier answer called; `arguments` is JSON text, and templates get the object that it stands for."""

    model_config = STRICT

    name: str
    arguments: str | dict[str, Any] = ""

    @field_validator("arguments", mode="after")
    @classmethod
    def _object(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(value, dict) or not value:
            return value
        if len(value) > MAX_ARGUMENT_CHARS:
            raise ValueError(f"may have at most {MAX_ARGUMENT_CHARS} characters")
        try:
            parsed: Any = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("must be JSON text") from None
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else value


class ToolCall(BaseModel):
    """A tool call of an earlier answer."""

    model_config = STRICT

    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """One turn of a conversation. Only an assistant's content may be null."""

    model_config = STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_content)] = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _said_something(self) -> "Message":
        if self.content is None and self.role != "assistant":
            raise ValueError("needs `content`")
        return self


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk with usage; with `continuous_usage_stats` every chunk has it as well."""

    model_config = STRICT

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(BaseModel):
    """What both ways of asking for text have in common. None means "not given": the defaults are the model's or ours."""

    model_config = STRICT

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: int | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, AfterValidator(_seed)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    logit_bias: Biases | None = None
    stop: Annotated[Stops | None, BeforeValidator(_listed)] = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, AfterValidator(_salt)] | None = None
    request_id: Annotated[str, AfterValidator(_request_id)] | None = None
    timeout_s: Timeout | None = None
    queue_timeout_s: QueueTimeout | None = None
    stall_timeout_s: StallTimeout | None = None
    priority: Priority | None = None
    deadline_ms: Deadline | None = None
    slo_class: SloClassName | None = None
    user: User | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` is allowed only with `stream`: true")
        return self

    @field_validator("best_of", mode="after")
    @classmethod
    def _all_of_them(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value is not None and value != (others.data.get("n") or 1):
            raise ValueError("is not supported yet, unless it equals `n`: all answers are sent")
        return value

    @property
    def samples(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def skips_specials(self) -> bool:
        return self.skip_special_tokens is not False

    @property
    def best_logprobs(self) -> int | None:
        """How many best tokens are to be told of with every token; None if nothing is."""
        return None

    @property
    def usage_at_end(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_always(self) -> bool:
        return self.usage_at_end and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `max_completion_tokens` goes before the older `max_tokens`."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_DOCUMENTS)] | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {"echo": (False,)}

    @field_validator("top_logprobs", mode="after")
    @classmethod
    def _with_logprobs(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value and not others.data.get("logprobs"):
            raise ValueError("is allowed only with `logprobs`: true")
        return value

    @property
    def best_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def longest_answer(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(GenerationBody):
    """POST /v1/completions. Every prompt gets `n` choices of the answer."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {"top_logprobs": (0,)}

    @field_validator("logprobs", mode="after")
    @classmethod
    def _without_echo(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value is not None and others.data.get("echo"):
            raise ValueError("is not supported together with `echo` yet")
        return value

    @property
    def best_logprobs(self) -> int | None:
        return self.logprobs


class TokenizeBody(BaseModel):
    """POST /tokenize: a prompt, or messages as a chat request would have them."""

    model_config = STRICT

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {"chat_template": NONE, "chat_template_kwargs": ({},)}

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either `prompt` or `messages`")
        return self


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = STRICT

    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_token_list)]

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {}


Body = TypeVar("Body", ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)


def validate(kind: type[Body], body: Mapping[str, Any]) -> Body:
    """The body as a `kind`. Raises `ApiError` 400 that names the field at fault."""
    refuse_unsupported(body, more=kind.NEUTRAL)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from None
