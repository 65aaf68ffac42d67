"""Jinja2 that cannot run away: templates out of model files are code of strangers. Knows nothing of chats.

Jinja's immutable sandbox keeps a template away from Python's insides. Here everything that repeats or grows is counted as
well: loops, calls, filters, operators, literals, and whatever is written out. The same template and the same data always end
the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinMethodType
from typing import Any, cast

import jinja2
from jinja2 import filters as jinja_filters
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from chairlift.text.limits import (
    Budget,
    check_filter,
    check_format,
    check_method,
    check_operator,
    check_parts,
    listed,
    words,
)

# No template can name these: they are not identifiers.
_BUDGET, _TURNS, _CONCAT, _MADE, _LOOKED_AT = " budget", " turns", " concat", " made", " looked at"

_FILTERS_OF_DATA = words(
    "abs attr count d default dictsort first float int items last length list map max min reject rejectattr reverse select"
    " selectattr sort sum unique"
)
_FILTERS_OF_TEXT = words(
    "capitalize center e escape forceescape format indent join lower replace round safe string title trim truncate upper"
    " urlencode wordcount"
)
_FILTERS_THAT_COMPARE = words("dictsort max min sort sum unique")
_GLOBALS = words("namespace cycler joiner")


class SafeEnvironment(ImmutableSandboxedEnvironment):
    """What templates run in. Made by `environment`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(_budget_of(context), operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        budget = _budget_of(context)
        budget.spend(1)
        if not isinstance(obj, BuiltinMethodType):
            return super().call(context, obj, *args, **kwargs)
        result = super().call(context, obj, *check_method(budget, obj, args, kwargs), **kwargs)
        budget.bound(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Python's `format` of a text, with neither wide fields nor fields that others widen."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def limited(*args: Any, **kwargs: Any) -> str:
            pattern = str(value.__self__)
            check_format(pattern, pattern.count("{"), [*args, *kwargs.values()])
            return formatted(*args, **kwargs)

        return limited


def environment(functions: Mapping[str, Callable[..., Any]], filters: Mapping[str, Callable[..., Any]]) -> SafeEnvironment:
    """A sandbox with the given functions, and the given filters, which make text of values, beside Jinja's harmless ones.

    Blocks are trimmed and loops have `break` and `continue`, as Hugging Face has it.
    """
    made = SafeEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # else constants would be worked out while compiling, where nothing is counted
        finalize=_written,
        extensions=[loopcontrols, _Generation],
    )
    # Jinja leaves the types of both tables open.
    known = cast("dict[str, Callable[..., Any]]", jinja_filters.FILTERS)  # pyright: ignore[reportUnknownMemberType]
    known = known | dict(filters)
    textual = _FILTERS_OF_TEXT | filters.keys()
    made.filters = {name: _counted(name, known[name], text=name in textual) for name in _FILTERS_OF_DATA | textual}
    made.filters |= {_TURNS: _turns, _CONCAT: _concat, _MADE: _made, _LOOKED_AT: _looked_at}
    offered = cast("dict[str, Any]", made.globals)  # pyright: ignore[reportUnknownMemberType]
    made.globals = {name: offered[name] for name in _GLOBALS} | {"range": _range, "dict": _dict} | dict(functions)
    return made


def compiled(environment: SafeEnvironment, tree: nodes.Template) -> jinja2.Template:
    """A parsed template, with all that repeats or grows counted. Raises jinja2.TemplateError for what it may not do."""
    for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise jinja2.TemplateSyntaxError("other templates cannot be included, imported or extended", node.lineno)
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not supported", loop.lineno)
    return environment.from_string(_Guard(environment).visit(tree))


def render(template: jinja2.Template, variables: Mapping[str, object]) -> Iterator[str]:
    """The output, piece by piece. Raises jinja2.TemplateError, LimitError among them, and what slips of the template raise."""
    return template.generate({**variables, _BUDGET: Budget()})


def _budget_of(context: Context) -> Budget:
    budget = context.parent[_BUDGET]
    assert isinstance(budget, Budget)
    return budget


class _Guard(NodeTransformer):
    """Puts a counting filter around whatever Jinja would do unseen."""

    def __init__(self, environment: SafeEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's visitor finds it by this name
        self.generic_visit(node)
        node.iter = self._filtered(cast("nodes.Expr", node.iter), _TURNS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        members = nodes.List(node.nodes, lineno=node.lineno)
        members.set_environment(self._environment)
        return self._filtered(members, _CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        if node.ctx == "load":
            return self._literal(node)
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._looked_at(node.expr)
        for operand in node.ops:
            operand.expr = self._looked_at(operand.expr)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        """Plain text becomes a constant, as only expressions are seen when they are written."""
        made = nodes.Const(node.data, lineno=node.lineno)
        made.set_environment(self._environment)
        return made

    def _literal(self, node: nodes.Literal) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(child, nodes.Const) for child in node.iter_child_nodes())
        return node if constant else self._filtered(node, _MADE)

    def _looked_at(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._filtered(node, _LOOKED_AT)

    def _filtered(self, node: nodes.Expr, name: str) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self._environment)
        return made


class _Generation(Extension):
    """Hugging Face's `{% generation %}`, which marks what an assistant has said: here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Turns:
    """An iterable whose turns are paid for one by one."""

    def __init__(self, values: Iterable[Any], budget: Budget) -> None:
        self._values = values
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._budget.spend(1)
            yield value

    def __len__(self) -> int:
        return len(cast("Sequence[Any]", self._values))


@jinja2.pass_context
def _turns(context: Context, values: Iterable[Any]) -> _Turns:
    return _Turns(values, _budget_of(context))


@jinja2.pass_context
def _concat(context: Context, members: list[object]) -> str:
    _budget_of(context).weigh(members)
    return "".join(str(member) for member in members)


@jinja2.pass_context
def _made(context: Context, value: object) -> object:
    _budget_of(context).bound(value)
    return value


@jinja2.pass_context
def _looked_at(context: Context, value: object) -> object:
    _budget_of(context).look_at(value)
    return value


@jinja2.pass_context
def _written(context: Context, value: object) -> object:
    _budget_of(context).write(value)
    return value


@jinja2.pass_context
def _range(context: Context, *bounds: int) -> range:
    values = range(*bounds)
    check_parts(len(values))
    _budget_of(context).look_at(values)
    return values


@jinja2.pass_context
def _dict(context: Context, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = dict(*args, **kwargs)
    _budget_of(context).bound(made)
    return made


def _counted(name: str, function: Callable[..., Any], *, text: bool) -> Callable[..., Any]:
    """A filter that pays for its operands and whose result is bounded; one that makes `text` of them weighs them first."""

    @jinja2.pass_context
    def counted(context: Context, *args: Any, **kwargs: Any) -> Any:
        budget = _budget_of(context)
        budget.spend(1)
        if text:
            args = tuple(listed(arg) for arg in args)
            kwargs = {key: listed(arg) for key, arg in kwargs.items()}
            check_filter(budget, name, [*args, *kwargs.values()])
        for operand in (*args, *kwargs.values()):
            budget.look_at(operand, closely=name in _FILTERS_THAT_COMPARE)
        result = function(*_lead(function, context), *args, **kwargs)
        budget.bound(result)
        return result

    return counted


def _lead(function: Callable[..., Any], context: Context) -> tuple[Any, ...]:
    """What Jinja would pass to a filter before its operands."""
    match getattr(getattr(function, "jinja_pass_arg", None), "name", None):
        case "context":
            return (context,)
        case "eval_context":
            return (context.eval_ctx,)
        case "environment":
            return (context.environment,)
        case _:
            return ()
