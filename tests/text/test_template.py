from datetime import datetime
from typing import Any

import pytest
from tiny_tokenizers import CHATML, byte_level, sentencepiece

from chairlift.core.errors import TemplateError
from chairlift.text.template import MAX_TEMPLATE_CHARS, ChatTemplate, encode_chat
from chairlift.text.tokenizer import build

HELLO = [{"role": "user", "content": "hello"}]
TOOL_TRIP: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "42"},
]
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.content }}]{% endfor %}"
)
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}<call>{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}{% elif m.role == 'tool' %}<result>{{ m.content }}"
    "{% else %}{{ m.role }}:{{ m.content }} {% endif %}{% endfor %}"
)


def noon() -> datetime:
    return datetime(2026, 3, 4, 12)


def templates(default: str | None = None, **named: str) -> ChatTemplate:
    source = byte_level(templates=({"default": default} if default is not None else {}) | named)
    return ChatTemplate(source, build(source), clock=noon)


def render(template: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return templates(template).render(messages, **options)


def test_a_chat_is_rendered_with_the_beginning_of_the_answer():
    assert render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_the_beginning_of_the_answer_can_be_left_out():
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_special_tokens_have_names():
    assert render("{{ bos_token }}|{{ eos_token }}|{{ unk_token }}") == "<s>|<|im_end|>|"


def test_blocks_are_trimmed_as_hugging_face_does():
    assert render("  {% if true %}\na\n  {% endif %}\nb") == "a\nb"


def test_loops_can_be_left():
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_turns_of_loops_can_be_skipped():
    assert render("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "02"


def test_generation_blocks_are_their_body():
    assert render("{% generation %}a{{ 1 }}{% endgeneration %}b") == "a1b"


def test_json_keeps_characters_and_is_not_escaped_for_html():
    assert render("{{ messages | tojson }}", [{"role": "é", "content": "<'&>"}]) == '[{"role": "é", "content": "<\'&>"}]'


def test_json_can_be_indented():
    assert render("{{ {'a': [1]} | tojson(indent=1) }}") == '{\n "a": [\n  1\n ]\n}'


def test_the_date_comes_from_the_clock():
    assert render("{{ strftime_now('%d %b %Y') }}") == "04 Mar 2026"


def test_more_variables_reach_the_template():
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}) == "False"


def test_more_variables_do_not_replace_the_messages():
    assert render("{{ messages[0].content }}", kwargs={"messages": []}) == "hello"


def test_documents_reach_the_template():
    assert render("{{ documents[0].text }}", documents=[{"text": "d"}]) == "d"


def test_loops_know_their_length_and_neighbours():
    rendered = render("{% for i in [1, 2, 3] %}{{ loop.length }}{{ loop.last }}{{ loop.previtem }} {% endfor %}")
    assert rendered == "3False 3False1 3True2 "


@pytest.mark.parametrize(("expression", "expected"), [
    ("messages | map(attribute='role') | join(',')", "user"),
    ("messages | selectattr('role', 'equalto', 'user') | list | length", "1"),
    ("'  a b ' | trim | upper", "A B"),
    ("'a-b'.split('-') | last", "b"),
    ("'abc'[::-1]", "cba"),
    ("'abc'.replace('b', 'x')", "axc"),
    ("'a'.join(['1', '2'])", "1a2"),
    ("'%s-%s' | format('a', 1)", "a-1"),
    ("'{}:{:02d}'.format('a', 7)", "a:07"),
    ("'%03d' % 7", "007"),
    ("'a' ~ 1 ~ none", "a1None"),
    ("{'a': 1}.items() | list", "[('a', 1)]"),
    ("dict(a=1).get('b', 'z')", "z"),
    ("'x\ny' | indent(2)", "x\n  y"),
    ("namespace(a=1).a + 2 ** 3", "9"),
    ("missing.more if missing else missing", ""),
    ("messages[0]['nothing'] | default('d')", "d"),
    ("[3, 1, 2] | sort | first", "1"),
    ("{'b': 1, 'a': 2} | dictsort | list", "[('a', 2), ('b', 1)]"),
    ("'user' in ['user', 'tool']", "True"),
])  # fmt: skip
def test_what_templates_use_works(expression: str, expected: str):
    assert render("{{ " + expression + " }}") == expected


# Refusals


@pytest.mark.parametrize("roles", [["system", "user"], ["user", "user"]])
def test_a_template_that_refuses_the_messages_is_quoted(roles: list[str]):
    with pytest.raises(TemplateError, match="refused the messages: roles must alternate"):
        render(ALTERNATING, [{"role": role, "content": "x"} for role in roles])


def test_no_template_says_how_to_give_one():
    with pytest.raises(TemplateError, match="no chat template: start the server with --chat-template FILE"):
        templates().render(HELLO)


def test_a_model_without_template_is_known_to_have_none():
    assert not templates().available


def test_without_a_template_one_can_be_given():
    assert templates().render(HELLO, template="{{ messages[0].content }}") == "hello"


def test_a_template_can_be_asked_for_by_name():
    assert templates("a", other="b").render(HELLO, template="other") == "b"


def test_templates_without_a_default_are_named():
    with pytest.raises(TemplateError, match="no chat template 'default', only other"):
        templates(other="b").render(HELLO)


@pytest.mark.parametrize(
    "broken",
    [
        "{% if %}",
        "{{ 'a",
        "{% nothing %}",
        "{{ x | nothing }}",
        "{% for x in %}",
        "{{ " + "(" * 5000,
    ],
)
def test_a_broken_template_is_an_error_of_one_line(broken: str):
    with pytest.raises(TemplateError, match=r"\Athe chat template is broken: [^\n]+\Z"):
        render(broken)


def test_a_broken_template_can_be_found_before_the_first_chat():
    with pytest.raises(TemplateError, match="broken"):
        templates("{% if %}").compile()


def test_no_template_and_those_of_other_names_are_no_reason_to_refuse_a_model():
    templates().compile()
    templates("fine", other="{% if %}").compile()


def test_a_template_that_is_too_long_is_refused():
    with pytest.raises(TemplateError, match="the limit is"):
        render("a" * (MAX_TEMPLATE_CHARS + 1))


@pytest.mark.parametrize(
    "slip",
    [
        "{{ missing.more }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + none }}",
        "{{ [1][7].x }}",
        "{{ none() }}",
        "{{ {} | tojson(1, 2, 3, 4, 5) }}",
        "{{ 1e400 }}",
        "{{ 'x' | truncate(-5) }}",
    ],
)
def test_a_slip_of_the_template_is_an_error(slip: str):
    with pytest.raises(TemplateError, match="the chat template failed"):
        render(slip)


def test_half_a_character_in_a_complaint_is_replaced():
    with pytest.raises(TemplateError, match="\ufffd"):
        render("{{ raise_exception(messages[0].content) }}", [{"role": "user", "content": "\ud83d"}])


def test_a_template_of_too_many_parts_is_refused():
    with pytest.raises(TemplateError, match="more than 20000 parts"):
        render("{{1}}" * 30_000)


# Tools


def test_a_tool_round_trip_works_where_the_template_knows_tools():
    assert render(WITH_TOOLS, TOOL_TRIP) == 'system:s user:u <call>f{"a": 1}<result>42'


def test_tools_reach_a_template_that_knows_them():
    assert render(WITH_TOOLS, HELLO, tools=[{"name": "f"}]) == '[{"name": "f"}]user:hello '


@pytest.mark.parametrize("template", [CHATML, ALTERNATING])
def test_a_tool_round_trip_is_refused_where_the_template_does_not_know_tools(template: str):
    with pytest.raises(TemplateError, match="does not know tools"):
        render(template, TOOL_TRIP)


def test_tools_are_refused_where_the_template_does_not_know_them():
    with pytest.raises(TemplateError, match="does not know tools"):
        render(CHATML, HELLO, tools=[{"name": "f"}])


def test_no_tools_are_fine_for_any_template():
    assert render("{{ messages[0].content }}", HELLO, tools=[]) == "hello"


def test_tools_take_the_template_that_is_for_them():
    assert templates("plain", tool_use="{{ tools | length }}").render(HELLO, tools=[{}]) == "1"


def test_documents_are_refused_where_the_template_does_not_know_them():
    with pytest.raises(TemplateError, match="does not know `documents`"):
        render(CHATML, documents=[{"text": "d"}])


def test_no_documents_are_fine_for_any_template():
    assert render("{{ messages[0].content }}", documents=[]) == "hello"


# BOS


@pytest.mark.parametrize("template", ["{{ bos_token }}a", "a", "{{ bos_token }}{{ bos_token }}a"])
def test_a_chat_has_one_bos_whether_the_template_writes_it_or_not(template: str):
    source = sentencepiece(add_bos=True, templates={"default": template})
    tokenizer = build(source)
    rendered = ChatTemplate(source, tokenizer).render(HELLO)
    assert [tokenizer.token(index) for index in encode_chat(tokenizer, rendered)] == ["<s>", "a"]


def test_a_chat_has_no_bos_that_neither_tokenizer_nor_template_wants():
    tokenizer = build(byte_level(add_bos=False))
    assert encode_chat(tokenizer, "he") == tokenizer.encode("he")


def test_a_bos_that_only_the_template_writes_stays():
    tokenizer = build(byte_level(add_bos=False))
    assert encode_chat(tokenizer, "<s>he")[0] == tokenizer.bos_id
