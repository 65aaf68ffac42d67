"""From a validated body to token ids: templates, tokenizers, and the bounds of both. Knows no engine.

The `tokenised` functions take long for long prompts: they run in worker threads, and touch nothing of the event loop.
"""

from typing import Any

from chairlift.server.errors import bad_request
from chairlift.server.openai.schema import ChatBody, CompletionBody, Message
from chairlift.server.service import Service
from chairlift.text.template import encode_chat
from chairlift.text.tokenizer import Tokenizer


def tokenised_chat(service: Service, body: ChatBody) -> list[int]:
    """The messages as the model's template renders them. Raises TemplateError, or `ApiError` 400 if they are too long."""
    if body.chat_template is not None and not service.settings.trust_request_chat_template:
        raise bad_request("`chat_template` in a request is not allowed by this server", param="chat_template")
    extra = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        # Clients send it to every model: a template that does not know it passes it over, where `documents` are refused.
        extra.setdefault("reasoning_effort", body.reasoning_effort)
    rendered = service.template.render(
        [as_turn(message) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False,
        documents=body.documents,
        kwargs=extra,
        template=body.chat_template,
    )
    check_size(service, rendered, "messages")
    if body.add_special_tokens:
        return service.tokenizer.encode(rendered, add_special_tokens=True)
    return encode_chat(service.tokenizer, rendered)


def as_turn(message: Message) -> dict[str, Any]:
    """A message as templates expect it: what was not given is not there, but for the content of an assistant."""
    turn = message.model_dump(exclude_none=True)
    turn.setdefault("content", None if message.tool_calls else "")
    return turn


def tokenised_prompts(service: Service, body: CompletionBody) -> list[list[int]]:
    """The prompts as token ids. Raises `ApiError` 400 for an id that is none, and for text that is too long."""
    if len(body.prompt) > service.settings.max_prompts:
        raise bad_request(f"at most {service.settings.max_prompts} prompts are allowed in one request", param="prompt")
    return [_tokenised(service, prompt, special=body.add_special_tokens is not False) for prompt in body.prompt]


def _tokenised(service: Service, prompt: str | list[int], *, special: bool) -> list[int]:
    if isinstance(prompt, str):
        check_size(service, prompt, "prompt")
        return service.tokenizer.encode(prompt, add_special_tokens=special)
    check_ids(service.tokenizer, prompt, "prompt")
    return prompt


def check_size(service: Service, text: str, param: str) -> None:
    """Raises `ApiError` 400 for a text that cannot fit however it is tokenised, so that nobody tries."""
    if len(text) * 4 <= service.max_prompt_bytes:
        return
    size = len(text.encode("utf-8"))
    if size > service.max_prompt_bytes:
        raise bad_request(
            f"the prompt has {size} bytes; this server takes at most {service.client.longest} tokens,"
            f" which cannot be more than {service.max_prompt_bytes} bytes",
            param=param,
        )


def check_ids(tokenizer: Tokenizer, ids: list[int], param: str) -> None:
    """Raises `ApiError` 400 for a token id that the model does not have."""
    if ids and not (min(ids) >= 0 and max(ids) < tokenizer.vocab_size):
        raise bad_request(f"token ids must be from 0 to {tokenizer.vocab_size - 1}", param=param)
