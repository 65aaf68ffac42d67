"""Chat templates: from messages to the one text that a model was trained to continue. Knows no HTTP and no engine.

The language is Jinja2 with the functions, filters and settings of Hugging Face's `apply_chat_template`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes

from chairlift.core.errors import TemplateError
from chairlift.core.types import TokenizerSource
from chairlift.text import sandbox
from chairlift.text.limits import LimitError
from chairlift.text.surrogates import well_formed
from chairlift.text.tokenizer import Tokenizer

MAX_OUTPUT_CHARS = 4 * 2**20
"""The longest rendered chat."""

MAX_TEMPLATE_CHARS = 256 * 2**10
"""The longest template."""

SHOWN_CHARS = 500
"""How much of a template's complaint is passed on."""

_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What running a template raises when the template, or the data that it meets, is at fault. Other errors are ours."""

_TOOL_WORDS = frozenset({"tool", "tools", "tool_calls", "tool_call_id", "tool_response", "tool_responses", "ipython"})

MAX_NODES = 20_000
"""The largest syntax tree of a template: Jinja's compiler takes about 0.1 ms for each node."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A template ready to run, and what it has heard of."""

    template: jinja2.Template
    variables: frozenset[str]
    knows_tool_messages: bool


class ChatTemplate:
    """The chat templates of one model. Safe to use from several threads at once.

    A model may have several: "default" is used, or "tool_use" if there are tools and a template of that name. `clock` gives
    the local time for templates that write today's date.
    """

    def __init__(self, source: TokenizerSource, tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now) -> None:
        self._templates = dict(source.templates)
        self._specials = _special_names(source, tokenizer)
        self._clock = clock
        self._environment: sandbox.SafeEnvironment | None = None
        self._compiled: dict[str, _Compiled] = {}

    @property
    def available(self) -> bool:
        """Whether the model has a template at all; without one only a template given with the request can be rendered."""
        return bool(self._templates)

    def compile(self) -> None:
        """Compiles the default template now rather than for the first chat. TemplateError if it is broken."""
        if "default" in self._templates:
            self._choose("default", None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> str:
        """The text of a chat. `template` is the name of one of the model's, or a template itself; `kwargs` are more variables.

        Raises TemplateError with the template's own words if it refuses the messages, and with the reason if there is no
        template, if it is broken or does too much, or if there are tools, calls of tools or documents and it knows of none.
        """
        chosen = self._choose(template, tools)
        if tools and "tools" not in chosen.variables:
            raise TemplateError("the chat template of this model does not know tools; it has no place for `tools`")
        if documents and "documents" not in chosen.variables:
            raise TemplateError("the chat template of this model does not know `documents`")
        if not chosen.knows_tool_messages and any(_about_tools(message) for message in messages):
            raise TemplateError("the chat template of this model does not know tools; it cannot show their calls or results")
        variables = {
            **self._specials,
            **(kwargs or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        return _rendered(chosen.template, variables)

    def _choose(self, wanted: str | None, tools: Sequence[Mapping[str, Any]] | None) -> _Compiled:
        if wanted is not None and wanted not in self._templates:
            return self._compile(wanted)
        name = wanted or ("tool_use" if tools and "tool_use" in self._templates else "default")
        if name not in self._templates:
            raise TemplateError(self._none(name))
        if name not in self._compiled:
            self._compiled[name] = self._compile(self._templates[name])
        return self._compiled[name]

    def _none(self, name: str) -> str:
        if self._templates:
            return f"the model has no chat template {name!r}, only {', '.join(sorted(self._templates))}"
        return (
            "this model has no chat template: start the server with --chat-template FILE (a Jinja2 template),"
            " or use /v1/completions with a prompt"
        )

    def _compile(self, text: str) -> _Compiled:
        if len(text) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the chat template has {len(text)} characters; the limit is {MAX_TEMPLATE_CHARS}")
        try:
            environment = self._ready()
            tree = environment.parse(text)
            if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_NODES:
                raise LimitError(f"it has more than {MAX_NODES} parts")
            variables = frozenset(meta.find_undeclared_variables(tree))
            knows_messages = _mentions_tools(tree)
            return _Compiled(sandbox.compiled(environment, tree), variables, knows_messages)
        except (*_FAULTS, SyntaxError, MemoryError) as error:
            raise TemplateError(f"the chat template is broken: {_one_line(error)}") from error

    def _ready(self) -> sandbox.SafeEnvironment:
        if self._environment is None:
            functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": self._strftime_now}
            self._environment = sandbox.environment(functions, {"tojson": _tojson})
        return self._environment

    def _strftime_now(self, pattern: str) -> str:
        if re.search(r"[0-9]{3,}", pattern) or len(pattern) > SHOWN_CHARS:
            raise LimitError("strftime_now is given a format that is too wide")
        return self._clock().strftime(pattern)


def encode_chat(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """The ids of a rendered chat: exactly one BOS at its start if the tokenizer adds one, whether the template wrote it or not.

    Nothing else is added, as the template writes all other special tokens itself.
    """
    ids = tokenizer.encode(rendered, add_special_tokens=False)
    if not tokenizer.adds_bos or tokenizer.bos_id is None:
        return ids
    start = next((place for place, index in enumerate(ids) if index != tokenizer.bos_id), len(ids))
    return [tokenizer.bos_id, *ids[start:]]


class _RefusedError(jinja2.TemplateError):
    """What a template raises by `raise_exception`."""


def _raise(message: object = "") -> None:
    raise _RefusedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face writes it: characters stay as they are, and nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _rendered(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    pieces: list[str] = []
    length = 0
    try:
        for piece in sandbox.render(template, variables):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                raise LimitError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
    except _RefusedError as refusal:
        raise TemplateError(f"the chat template refused the messages: {_one_line(refusal)}") from refusal
    except _FAULTS as error:
        raise TemplateError(f"the chat template failed: {_one_line(error)}") from error
    return "".join(pieces)


def _special_names(source: TokenizerSource, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens that templates write by name. One that the model does not have is not there (and writes nothing)."""
    eos_id = source.eos_ids[0] if source.eos_ids else None
    ids = {"bos_token": source.bos_id, "eos_token": eos_id, "unk_token": source.unk_id, "pad_token": source.pad_id}
    return {name: tokenizer.token(index) for name, index in ids.items() if index is not None}


def _mentions_tools(tree: nodes.Template) -> bool:
    """Whether a template speaks of the messages that tools bring: by a role, a field or a variable."""
    constants = (node.value for node in tree.find_all(nodes.Const))
    names = [node.attr for node in tree.find_all(nodes.Getattr)]
    return any(isinstance(value, str) and value in _TOOL_WORDS for value in [*constants, *names])


def _about_tools(message: Mapping[str, Any]) -> bool:
    return message.get("role") in {"tool", "function"} or bool(message.get("tool_calls"))


def _one_line(error: BaseException) -> str:
    return well_formed(" ".join(str(error).split())[:SHOWN_CHARS]) or "no reason given"
