"""How much a chat template may do and make: steps, sizes and widths, counted without a clock. Knows no template language.

Every check comes before the work that it is about, so that nothing huge is ever made.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import BuiltinMethodType
from typing import Any, cast

import jinja2

MAX_STEPS = 300_000
"""Loop turns, calls, filters, comparisons and pieces of output of one rendering; large operands count as several."""

MAX_VALUE_CHARS = 4 * 2**20
"""The longest text, and the most text in one list or dictionary, that a template may make."""

MAX_VALUE_PARTS = 100_000
"""The most members, nested ones included, of a list or dictionary that a template may make or write out."""

MAX_WRITTEN_CHARS = 4 * MAX_VALUE_CHARS
"""All that is written, also into variables and macros, where it counts each time."""

MAX_NUMBER_BITS = 1024

MAX_WIDTH = 1000
"""The widest padding or indentation, and the widest field of a format."""

_CHARS_A_STEP = 256
_PARTS_A_STEP = 16
_WEIGHED_A_STEP = 4
"""Parts that are looked at one by one; it takes far longer than passing over them."""


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


_TEXT_METHODS = words(
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle"
    " isupper lower lstrip partition removeprefix removesuffix rfind rindex rpartition rstrip startswith strip"
    " swapcase title upper"
)
_SPLITTING_METHODS = words("rsplit split splitlines")
_PADDING_METHODS = words("center ljust rjust zfill expandtabs")
_DATA_METHODS = words("copy count get index items keys values")

_WORD = re.compile(r"\S+")
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

_WIDE_FORMAT = re.compile(r"[0-9]{4,}|\*|\{[^{}]*\{")


class LimitError(jinja2.TemplateError):
    """A template that does too much. The message says which limit it met."""


class Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._chars = MAX_WRITTEN_CHARS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise LimitError(f"it takes more than {MAX_STEPS} steps")

    def write(self, value: object) -> None:
        """Pays for writing a value out."""
        chars = len(value) if isinstance(value, str) else self.weigh(value)
        self.spend(1 + chars // _CHARS_A_STEP)
        self._chars -= chars
        if self._chars < 0:
            raise LimitError(f"it writes more than {MAX_WRITTEN_CHARS} characters")

    def look_at(self, value: object, *, closely: bool = False) -> None:
        """Pays for reading a value once, without what its members hold; or for doing something with every member."""
        if isinstance(value, str):
            self.spend(len(value) // _CHARS_A_STEP)
        elif isinstance(value, list | tuple | dict | range):
            self.spend(len(cast("Sequence[object]", value)) // (1 if closely else _PARTS_A_STEP))

    def weigh(self, value: object) -> int:
        """Pays for reading a value with all that it holds, and gives the characters in it. What is held twice counts twice."""
        chars, parts = weight(value)
        self.spend(chars // _CHARS_A_STEP + parts // _WEIGHED_A_STEP)
        return chars

    def bound(self, value: object) -> None:
        """Refuses a text, list or dictionary that is too large with all that it holds. Objects of Jinja in it weigh nothing."""
        if isinstance(value, str | list | tuple | dict):
            self.weigh(_only_data(cast("object", value)))


def weight(value: object) -> tuple[int, int]:
    """Characters and members of a value made of text, numbers, lists and dictionaries. Raises LimitError for too many.

    Anything else has no text of its own that a template could want, and raises LimitError as well.
    """
    chars = parts = 0
    waiting: list[object] = [value]
    while waiting:
        member = waiting.pop()
        parts += 1
        if type(member) is str:  # most are, so they take the short way
            chars += len(member)
        else:
            chars += _own_chars(member)
            waiting.extend(_members(member))
        if parts + len(waiting) > MAX_VALUE_PARTS:
            raise LimitError(f"it makes a value of more than {MAX_VALUE_PARTS} parts")
        check_chars(chars)
    return chars, parts


def _members(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple | range):
        return cast("Sequence[object]", value)
    if isinstance(value, dict):
        table = cast("Mapping[object, object]", value)
        return [*table.keys(), *table.values()]
    return ()


def _own_chars(value: object) -> int:
    match value:
        case str():
            return len(value)
        case bool() | None | float():
            return 24
        case int():
            return 1 + value.bit_length() // 3
        case list() | tuple() | dict() | range() | jinja2.Undefined():
            return 2
        case _:
            raise LimitError(f"it writes a {type(value).__name__}, which is neither text nor data")


def is_data(value: object) -> bool:
    """Whether a value is text, a number, nothing, or a collection of JSON's kinds."""
    if type(value) is str or value is None:
        return True
    return isinstance(value, str | bool | int | float | list | tuple | dict | range | jinja2.Undefined)


def _only_data(value: object) -> object:
    if isinstance(value, str):
        return value
    return [member for member in _members(value) if is_data(member)]


def listed(value: Any) -> Any:
    """What can be read only once (a lazy `map`, a view of a dictionary) as a list, so that it can be weighed before use."""
    return value if is_data(value) or not isinstance(value, Iterable) else list(cast("Iterable[Any]", value))


def check_chars(chars: int) -> None:
    if chars > MAX_VALUE_CHARS:
        raise LimitError(f"it makes a text of more than {MAX_VALUE_CHARS} characters")


def check_parts(parts: int) -> None:
    if parts > MAX_VALUE_PARTS:
        raise LimitError(f"it makes a value of more than {MAX_VALUE_PARTS} parts")


def check_width(width: object) -> None:
    if isinstance(width, int) and abs(width) > MAX_WIDTH:
        raise LimitError(f"it asks for a width of more than {MAX_WIDTH}")
    if isinstance(width, str):
        check_width(len(width))


def check_format(pattern: str, fields: int, values: list[Any]) -> None:
    """For Python's two ways to format: the widths are written out, and the sum of all fields is bounded."""
    if _WIDE_FORMAT.search(pattern):
        raise LimitError(f"a format asks for a width of more than {MAX_WIDTH}, or for one that is not written out")
    check_chars(len(pattern) + fields * (MAX_WIDTH + weight(values)[0]))


def replaced_chars(text: str, old: str, new: str) -> int:
    """The most characters that replacing gives."""
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def check_filter(budget: Budget, name: str, operands: list[Any]) -> None:
    """Before the filter `name` makes a text of its operands."""
    chars = budget.weigh(operands)
    texts = [operand for operand in operands if isinstance(operand, str)]
    match name:
        case "replace":
            check_chars(replaced_chars(*texts[:3]) if len(texts) >= 3 else chars)
        case "format" if texts:
            check_format(texts[0], texts[0].count("%"), operands[1:])
        case "join":
            check_chars(chars + len(texts[-1] if texts else "") * len(list(_members(operands[0])) or str(operands[0])))
        case "indent" if len(operands) > 1:
            check_width(operands[1])
            check_chars(chars + (str(operands[0]).count("\n") + 1) * MAX_WIDTH)
        case "center" | "tojson" | "round":
            for operand in operands[1:]:
                check_width(operand)
        case _:
            return


def check_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Before an operator that may make something large: + * ** %."""
    budget.spend(1)
    if isinstance(left, int) and isinstance(right, int):
        _check_integers(operator, left, right)
    elif operator == "%" and isinstance(left, str):
        check_format(left, left.count("%"), [right])
    elif operator == "+":
        _check_sum(budget, left, right)
    elif operator == "*":
        _check_repeat(budget, left, right)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MAX_NUMBER_BITS:
        raise LimitError(f"it makes a number of more than {MAX_NUMBER_BITS} bits")


def _check_sum(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.look_at(left)
        budget.look_at(right)
        check_chars(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        budget.bound([*cast("Sequence[Any]", left), *cast("Sequence[Any]", right)])


def _check_repeat(budget: Budget, left: Any, right: Any) -> None:
    value, times = (right, left) if isinstance(left, int) else (left, right)
    if not isinstance(value, str | list | tuple) or not isinstance(times, int):
        return
    chars, parts = weight(_only_data(cast("object", value)))
    check_chars(chars * max(times, 0))
    check_parts(0 if isinstance(value, str) else parts * max(times, 0))
    budget.spend(max(times, 0) * chars // _CHARS_A_STEP)


def check_split(text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Before a method `name` of `text` that makes a list: how many members it will have, counted as far as they may be."""
    given = dict(zip(("sep", "maxsplit"), args, strict=False)) | dict(kwargs)
    separator, most = given.get("sep"), given.get("maxsplit", -1)
    if name == "splitlines":
        check_parts(1 + _count(_LINE_END, text))
    elif not isinstance(most, int) or not 0 <= most <= MAX_VALUE_PARTS:
        check_parts(1 + text.count(separator) if isinstance(separator, str) else _count(_WORD, text))


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in islice(pattern.finditer(text), MAX_VALUE_PARTS + 1))


def check_method(
    budget: Budget, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments for a method of text or data, if what it makes is bounded. Raises LimitError otherwise."""
    owner: object = method.__self__
    name, kind = method.__name__, cast("type[object]", type(owner))
    budget.look_at(owner)
    if not isinstance(owner, str):
        if kind not in {dict, list, tuple} or name not in _DATA_METHODS:
            raise LimitError(f"it may not call {name!r} of a {kind.__name__}")
        return args
    match name, args:
        case "join", (members,):
            pieces = listed(members)
            check_chars(budget.weigh(pieces) + len(owner) * len(pieces))
            return (pieces,)
        case "replace", (str(old), str(new), *_):
            check_chars(replaced_chars(owner, old, new))
        case _, (int(width), *_) if name in _PADDING_METHODS:
            check_width(width)
            check_chars(len(owner) + width * (1 + owner.count("\t")))
        case _ if name in _SPLITTING_METHODS:
            check_split(owner, name, args, kwargs)
        case _ if name in _TEXT_METHODS:
            pass
        case _:
            raise LimitError(f"it may not call {name!r} of a text like this")
    return args
