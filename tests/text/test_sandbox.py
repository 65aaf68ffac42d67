"""Templates that would take all memory or all time. Each is refused by a count, so no test here takes long or much."""

import pytest
from tiny_tokenizers import byte_level

from chairlift.core.errors import TemplateError
from chairlift.text.template import MAX_OUTPUT_CHARS, ChatTemplate
from chairlift.text.tokenizer import build

GROWING = "{% set n = namespace(x=START) %}{% for i in range(64) %}{% set n.x = STEP %}{% endfor %}{{ n.x }}"


def grow(start: str, step: str) -> str:
    return GROWING.replace("START", start).replace("STEP", step)


BOMBS = {
    "repeat": "{{ 'a' * 10**9 }}",
    "repeat from the left": "{{ 10**9 * 'a' }}",
    "repeat a list": "{{ [1] * 10**9 }}",
    "power": "{{ 10 ** 10 ** 9 }}{{ (10 ** 300) ** 300 }}",
    "product": "{% set n = namespace(x=10**100) %}{% for i in range(64) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format": "{{ '{:1000000000d}'.format(1) }}",
    "format by argument": "{{ '{:{}d}'.format(1, 1000000000) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "many fields": "{{ ('%s' * 5000) | format(*(['a' * 1000] * 5000)) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "center by name": "{{ 'a' | center(width=10**9) }}",
    "center block": "{% filter center(10**9) %}a{% endfilter %}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "indent by a text": "{{ ('\n' * 1000000) | indent('a' * 1000000) }}",
    "json indent": "{{ [1] | tojson(indent=10**9) }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace nothing": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('a' * 1000000).join('b' * 1000) }}",
    "join filter": "{{ range(1000) | join('a' * 1000000) }}",
    "join shared": "{{ ([['a' * 100000]] * 1000) | join }}",
    "print shared": "{{ ['a' * 100000] * 1000 }}",
    "split": "{{ ('a,' * 1000000).split(',') | length }}",
    "split into words": "{{ ('a ' * 1000000).split() | length }}",
    "split far": "{{ ('a,' * 1000000).split(',', 999999) | length }}",
    "split by name": "{{ ('a,' * 1000000).split(sep=',') | length }}",
    "split from the right": "{{ ('a,' * 1000000).rsplit(',') | length }}",
    "lines": "{{ ('\n' * 1000000).splitlines() | length }}",
    "unusual lines": "{{ ('\u2028' * 1000000).splitlines() | length }}",
    "split again": "{% set t = 'a,' * 90000 %}{% for i in range(1000) %}{% set x = t.split(',') %}{% endfor %}",
    "copy again": "{% set d = [0] * 90000 %}{% for i in range(1000) %}{% set x = d.copy() %}{% endfor %}",
    "concat": grow("'a'", "n.x ~ n.x"),
    "sum of texts": grow("'a'", "n.x + n.x"),
    "sum of lists": grow("[1]", "n.x + n.x"),
    "nested lists": grow("[1]", "[n.x, n.x]"),
    "nested tuples": grow("(1,)", "(n.x, n.x)"),
    "nested dictionaries": grow("{}", "{'a': n.x, 'b': n.x}"),
    "nested dict()": grow("{}", "dict(a=n.x, b=n.x)"),
    "map to a default": grow("[1]", "messages | map(attribute='q', default=[n.x, n.x]) | list"),
    "captured": "{% set n = namespace(x='a') %}{% for i in range(64) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% set n.x = y %}{% endfor %}",
    "captured text": "{% set x %}{% for i in range(90000) %}" + "a" * 100_000 + "{% endfor %}{% endset %}",
    "output": "{% for i in range(1000) %}{{ 'a' * 10000 }}{% endfor %}",
    "range": "{{ range(10**9) | list }}",
    "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "loops over text": "{% for i in 'a' * 90000 %}{% for j in 'a' * 90000 %}{% endfor %}{% endfor %}",
    "searches": "{% set r = range(90000) | list %}{% for i in r %}{{ 'q' in r }}{% endfor %}",
    "sorts": "{% set r = range(90000) | list %}{% for i in r %}{% set x = r | sort %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "lipsum": "{{ lipsum(10**6) }}",
    "date": "{{ strftime_now('%1000000000d') }}",
}


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS.keys())
def test_what_would_explode_is_refused(template: str):
    source = byte_level()
    with pytest.raises(TemplateError):
        ChatTemplate(source, build(source)).render([{"role": "user", "content": "a"}] * 100, template=template)


@pytest.mark.parametrize(("split", "expected"), [
    ("split(',', 1)", 2),
    ("rsplit(',', maxsplit=2)", 3),
    ("split()", 1),
    ("split('b')", 1),
    ("splitlines()", 1),
    ("partition(',')", 3),
])  # fmt: skip
def test_a_long_text_may_be_split_into_few_parts(split: str, expected: int):
    source = byte_level()
    template = "{{ ('a,' * 1000000)." + split + " | length }}"
    assert ChatTemplate(source, build(source)).render([], template=template) == str(expected)


@pytest.mark.parametrize("template", [
    "{{ messages.__class__.__mro__ }}",
    "{{ raise_exception.__globals__.os }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{{ namespace() }}",
    "{{ messages[0].popitem() }}",
])  # fmt: skip
def test_what_reaches_out_of_the_sandbox_is_refused(template: str):
    source = byte_level()
    with pytest.raises(TemplateError):
        ChatTemplate(source, build(source)).render([{"role": "user", "content": "a"}], template=template)


def test_a_long_chat_is_far_from_the_limits():
    source = byte_level()
    rendered = ChatTemplate(source, build(source)).render([{"role": "user", "content": "word " * 100}] * 4000)
    assert 2_000_000 < len(rendered) < MAX_OUTPUT_CHARS


def test_one_rendering_does_not_use_up_the_next():
    source = byte_level()
    template = ChatTemplate(source, build(source))
    work = "{% for i in range(90000) %}{% endfor %}"
    assert [template.render([], template=work) for _ in range(5)] == [""] * 5
