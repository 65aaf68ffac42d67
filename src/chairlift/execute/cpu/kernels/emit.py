"""Writes LLVM IR that reads like arithmetic: values with operators, loops and conditions as `with` blocks.

Knows types and control flow; knows nothing of models. Python code that runs here runs once, while machine code is made: a
Python loop unrolls, a Python list is a set of registers. Integers are signed unless a name says otherwise; addresses are
64-bit integers; nothing is reordered, contracted or assumed away, so the same formula gives the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
VOID = ir.VoidType()

Operand = "Value | int | float"


def vector(element: ir.Type, lanes: int) -> ir.Type:
    """The vector type, or the plain type for one lane."""
    return element if lanes == 1 else ir.VectorType(element, lanes)


def lanes_of(kind: Any) -> int:
    return kind.count if isinstance(kind, ir.VectorType) else 1


def like(kind: Any, element: ir.Type) -> ir.Type:
    """`element` in as many lanes as `kind` has."""
    return vector(element, lanes_of(kind))


def constant(kind: Any, value: float) -> ir.Constant:
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def _is_float(kind: Any) -> bool:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return isinstance(element, (ir.HalfType, ir.FloatType, ir.DoubleType))


class Value:
    """A number or vector at run time. Operators emit instructions; Python numbers beside it become constants of its type."""

    __slots__ = ("_f", "ir")

    def __init__(self, f: Function, value: Any) -> None:
        self._f = f
        self.ir = value

    @property
    def type(self) -> Any:
        return self.ir.type

    def _other(self, other: Any) -> Any:
        return other.ir if isinstance(other, Value) else constant(self.type, other)

    def _binary(self, other: Any, whole: str, real: str | None = None, *, swapped: bool = False) -> Value:
        name = real if _is_float(self.type) else whole
        assert name is not None, f"no such operation on {self.type}"
        pair = (self._other(other), self.ir) if swapped else (self.ir, self._other(other))
        return Value(self._f, getattr(self._f.builder, name)(*pair))

    def __add__(self, other: Any) -> Value:
        return self._binary(other, "add", "fadd")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other: Any) -> Value:
        return self._binary(other, "sub", "fsub", swapped=True)

    def __mul__(self, other: Any) -> Value:
        return self._binary(other, "mul", "fmul")

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "", "fdiv")

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary(other, "", "fdiv", swapped=True)

    def __floordiv__(self, other: Any) -> Value:
        """Rounds towards zero, as integers here are not negative."""
        return self._binary(other, "sdiv")

    def __mod__(self, other: Any) -> Value:
        return self._binary(other, "srem")

    def __lshift__(self, other: Any) -> Value:
        return self._binary(other, "shl")

    def __rshift__(self, other: Any) -> Value:
        """Arithmetic: the sign stays."""
        return self._binary(other, "ashr")

    def unsigned_shift(self, other: Any) -> Value:
        return self._binary(other, "lshr")

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "and_")

    def __or__(self, other: Any) -> Value:
        return self._binary(other, "or_")

    def __xor__(self, other: Any) -> Value:
        return self._binary(other, "xor")

    def __neg__(self) -> Value:
        builder = self._f.builder
        return Value(self._f, builder.fneg(self.ir) if _is_float(self.type) else builder.neg(self.ir))

    def _compare(self, sign: str, other: Any) -> Value:
        builder = self._f.builder
        compare = builder.fcmp_ordered if _is_float(self.type) else builder.icmp_signed
        return Value(self._f, compare(sign, self.ir, self._other(other)))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Any) -> Value:
        return self._compare("==", other)

    def differs(self, other: Any) -> Value:
        return self._compare("!=", other)

    def below(self, other: Any) -> Value:
        """Unsigned comparison of integers."""
        return Value(self._f, self._f.builder.icmp_unsigned("<", self.ir, self._other(other)))

    def bits(self, kind: ir.Type) -> Value:
        """The same bits as another type of the same size."""
        return Value(self._f, self._f.builder.bitcast(self.ir, kind))

    def to(self, element: Any) -> Value:
        """Converted, lane by lane: signed integers, rounding to nearest even into floats, towards zero out of them."""
        old, new = self.type, like(self.type, element)
        builder = self._f.builder
        if old == new:
            return self
        if _is_float(old) and _is_float(new):
            narrower = _width(new) < _width(old)
            return Value(self._f, (builder.fptrunc if narrower else builder.fpext)(self.ir, new))
        if _is_float(old):
            return Value(self._f, builder.fptosi(self.ir, new))
        if _is_float(new):
            return Value(self._f, builder.sitofp(self.ir, new))
        return Value(self._f, (builder.trunc if _width(new) < _width(old) else builder.sext)(self.ir, new))

    def unsigned_to(self, element: Any) -> Value:
        """Converted to a wider integer or a float, as an unsigned number."""
        new = like(self.type, element)
        builder = self._f.builder
        return Value(self._f, builder.uitofp(self.ir, new) if _is_float(new) else builder.zext(self.ir, new))

    def splat(self, lanes: int) -> Value:
        """This number in every lane."""
        if lanes == 1:
            return self
        kind = ir.VectorType(self.type, lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        builder = self._f.builder
        first = builder.insert_element(undefined, self.ir, ir.Constant(I32, 0))
        return Value(self._f, builder.shuffle_vector(first, undefined, constant(ir.VectorType(I32, lanes), 0)))

    def lane(self, index: int | Value) -> Value:
        where = index.ir if isinstance(index, Value) else ir.Constant(I32, index)
        return Value(self._f, self._f.builder.extract_element(self.ir, where))

    def lanes(self, wanted: Sequence[int]) -> Value:
        """A shorter or reordered vector."""
        mask = ir.Constant(ir.VectorType(I32, len(wanted)), list(wanted))
        return Value(self._f, self._f.builder.shuffle_vector(self.ir, ir.Constant(self.type, ir.Undefined), mask))


def _width(kind: Any) -> int:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    if isinstance(element, ir.IntType):
        return element.width
    return {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}[type(element)]


class Variable:
    """A value that changes: a register after LLVM is through with it."""

    __slots__ = ("_f", "_slot")

    def __init__(self, f: Function, slot: Any) -> None:
        self._f = f
        self._slot = slot

    @property
    def value(self) -> Value:
        return Value(self._f, self._f.builder.load(self._slot))

    @value.setter
    def value(self, new: Value) -> None:
        self._f.builder.store(new.ir, self._slot)


class Function:
    """A function under construction."""

    def __init__(self, module: Module, function: ir.Function) -> None:
        self.module = module
        self.ir = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.arguments = tuple(Value(self, argument) for argument in function.args)

    def number(self, kind: Any, value: float) -> Value:
        return Value(self, constant(kind, value))

    def numbers(self, kind: Any, values: Sequence[int]) -> Value:
        """A constant vector."""
        return Value(self, ir.Constant(kind, list(values)))

    def whole(self, value: int) -> Value:
        return self.number(I64, value)

    def var(self, start: Value) -> Variable:
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(start.type)
        self.builder.store(start.ir, slot)
        return Variable(self, slot)

    def load(self, kind: Any, address: Value, align: int | None = None) -> Value:
        """`align` in bytes; without it the size of one element."""
        pointer = self.builder.inttoptr(address.ir, kind.as_pointer())
        return Value(self, self.builder.load(pointer, align=align or _width(kind) // 8))

    def store(self, value: Value, address: Value, align: int | None = None) -> None:
        pointer = self.builder.inttoptr(address.ir, value.type.as_pointer())
        self.builder.store(value.ir, pointer, align=align or _width(value.type) // 8)

    def prefetch(self, address: Value) -> None:
        """Asks for a cache line that will be read soon. Any address will do, even one that is not there."""
        pointer = Value(self, self.builder.inttoptr(address.ir, I8.as_pointer()))
        how = [self.number(I32, value) for value in (0, 3, 1)]
        self.intrinsic("llvm.prefetch.p0", VOID, pointer, *how)

    def load_acquire(self, address: Value) -> Value:
        return Value(self, self.builder.load_atomic(self.builder.inttoptr(address.ir, I64.as_pointer()), "acquire", 8))

    def store_release(self, value: Value, address: Value) -> None:
        self.builder.store_atomic(value.ir, self.builder.inttoptr(address.ir, I64.as_pointer()), "release", 8)

    def fetch_add(self, address: Value, amount: Value) -> Value:
        """Adds to a 64-bit word that other threads add to as well; what was there before."""
        pointer = self.builder.inttoptr(address.ir, I64.as_pointer())
        return Value(self, self.builder.atomic_rmw("add", pointer, amount.ir, "seq_cst"))

    def call(self, function: Any, *arguments: Value) -> Value:
        return Value(self, self.builder.call(function, [argument.ir for argument in arguments]))

    def intrinsic(self, name: str, returns: Any, *arguments: Value) -> Value:
        """Calls a function that LLVM or the C library provides."""
        return self.call(self.module.external(name, returns, [argument.type for argument in arguments]), *arguments)

    def _same(self, name: str, *arguments: Value) -> Value:
        kind = arguments[0].type
        element = kind.element if isinstance(kind, ir.VectorType) else kind
        letter = "f" if _is_float(kind) else "i"
        lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        return self.intrinsic(f"llvm.{name}.{lanes}{letter}{_width(element)}", kind, *arguments)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self._same("fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self._same("sqrt", x)

    def round(self, x: Value) -> Value:
        """To the nearest whole number, to the even one of two; still a float."""
        return self._same("rint", x)

    def absolute(self, x: Value) -> Value:
        return self._same("fabs", x)

    def unsigned_max(self, a: Value, b: Value) -> Value:
        return self._same("umax", a, b)

    def signed_max(self, a: Value, b: Value) -> Value:
        return self._same("smax", a, b)

    def signed_min(self, a: Value, b: Value) -> Value:
        return self._same("smin", a, b)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return Value(self, self.builder.select(condition.ir, yes.ir, no.ir))

    def larger(self, a: Value, b: Value) -> Value:
        """The larger of two floats; b if either is not a number."""
        return self.select(a > b, a, b)

    def lesser(self, a: Value, b: Value) -> Value:
        return self.select(a < b, a, b)

    def join(self, a: Value, b: Value) -> Value:
        """The lanes of a, then those of b."""
        count = lanes_of(a.type)
        mask = ir.Constant(ir.VectorType(I32, 2 * count), list(range(2 * count)))
        return Value(self, self.builder.shuffle_vector(a.ir, b.ir, mask))

    def fold(self, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """All lanes into one, by halves: lane i with lane i + n/2, and so on. The order is fixed."""
        count = lanes_of(x.type)
        while count > 1:
            count //= 2
            low, high = x.lanes(range(count)), x.lanes(range(count, 2 * count))
            x = combine(low, high) if count > 1 else combine(low.lane(0), high.lane(0))
        return x

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Counts from start up to, and not including, stop."""
        index = self.var(self._whole(start))
        last, by = self._whole(stop), self._whole(step)
        with self.repeat(lambda: index.value < last):
            now = index.value
            yield now
            index.value = now + by

    @contextmanager
    def repeat(self, condition: Callable[[], Value]) -> Iterator[None]:
        """As long as the condition, which is worked out anew each time, holds."""
        builder = self.builder
        head, body, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(condition().ir, body, done)
        builder.position_at_end(body)
        yield
        builder.branch(head)
        builder.position_at_end(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition.ir):
            yield

    def either(self, condition: Value) -> Any:
        """`with f.either(c) as (yes, no):` and within it `with yes:` and `with no:`."""
        return self.builder.if_else(condition.ir)

    def ret(self, value: Value | None = None) -> None:
        if value is None:
            self.builder.ret_void()
        else:
            self.builder.ret(value.ir)

    def _whole(self, value: Value | int) -> Value:
        return value if isinstance(value, Value) else self.whole(value)


class Module:
    """All functions of one object file. `triple` says for which system."""

    def __init__(self, triple: str) -> None:
        self.ir = ir.Module(name="chairlift")
        self.ir.triple = triple

    def external(self, name: str, returns: Any, arguments: Sequence[Any]) -> ir.Function:
        known = self.ir.globals.get(name)
        return known or ir.Function(self.ir, ir.FunctionType(returns, arguments), name)

    def function(
        self, name: str, arguments: Sequence[Any], returns: Any = VOID, *, public: bool = False, inline: bool = False
    ) -> Function:
        """A new function; a public one can be found in the object file by its name."""
        function = ir.Function(self.ir, ir.FunctionType(returns, arguments), name)
        function.linkage = "external" if public else "internal"
        function.attributes.add("nounwind")
        if not public:
            function.attributes.add("alwaysinline" if inline else "noinline")
        return Function(self, function)
