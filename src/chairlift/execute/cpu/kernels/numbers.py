"""Conversions and functions of numbers, the same bits on every instruction set: halves, bfloat16, exponentials.

Knows formulas; knows neither weights nor attention.
"""

import math

from chairlift.execute.cpu.kernels.emit import F16, F32, I8, I16, I32, I64, Function, Value, like, vector

ROUND_TO_EVEN = 12_582_912.0
"""1.5 * 2^23: added to a float32 of less than 2^22 it leaves the nearest whole number in the low bits of the mantissa."""
ROUND_TO_EVEN_64 = 6_755_399_441_055_744.0

_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_EXP64 = tuple(1 / math.factorial(power) for power in range(13, -1, -1))
_LOG2_HIGH_64, _LOG2_LOW_64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10

ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ERF_SLOPE = 0.3275911
"""Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7."""


def half_to_float(f: Function, bits: Value, *, native: bool) -> Value:
    """IEEE half-precision numbers, given as 16-bit integers, exactly."""
    if native:
        return bits.bits(like(bits.type, F16)).to(F32)
    word = bits.unsigned_to(I32)
    # The exponent is moved by a multiplication, which is exact and puts subnormal numbers right as well.
    magnitude = ((word & 0x7FFF) << 13).bits(like(word.type, F32)) * 2.0**112
    special = (word & 0x7C00).equals(0x7C00)
    endless = magnitude.bits(word.type) | 0x7F800000
    unsigned = f.select(special, endless, magnitude.bits(word.type))
    return (unsigned | ((word & 0x8000) << 16)).bits(like(word.type, F32))


def float_to_half(f: Function, x: Value, *, native: bool) -> Value:
    """To 16-bit integers, rounded to nearest even."""
    if native:
        return x.to(F16).bits(like(x.type, I16))
    word = x.bits(like(x.type, I32))
    sign = word.unsigned_shift(16) & 0x8000
    magnitude = word & 0x7FFFFFFF
    scaled = magnitude.bits(x.type) * 2.0**-112
    small = (magnitude.bits(x.type) + 0.5).bits(word.type) - 0x3F000000
    shifted = scaled.bits(word.type)
    normal = (shifted + 0xFFF + ((shifted.unsigned_shift(13)) & 1)).unsigned_shift(13)
    result = f.select(magnitude.below(0x38800000), small, normal)
    result = f.select(magnitude.below(0x47800000), result, f.number(word.type, 0x7C00))
    result = f.select(magnitude > 0x7F800000, f.number(word.type, 0x7E00), result)
    return (result | sign).to(I16)


def bfloat_to_float(bits: Value) -> Value:
    return (bits.unsigned_to(I32) << 16).bits(like(bits.type, F32))


def float_to_bfloat(f: Function, x: Value) -> Value:
    """To 16-bit integers, rounded to nearest even; what is not a number stays so."""
    word = x.bits(like(x.type, I32))
    rounded = (word + 0x7FFF + (word.unsigned_shift(16) & 1)).unsigned_shift(16)
    broken = (word & 0x7FFFFFFF) > 0x7F800000
    return f.select(broken, word.unsigned_shift(16) | 0x40, rounded).to(I16)


def exp(f: Function, x: Value) -> Value:
    """e to the x in float32, within two units of the last place; 1 at 0 exactly, 0 below -87, about 2.4e38 above 88.3."""
    kind = x.type
    x = f.select(x > 88.37, f.number(kind, 88.37), x)
    shifted = f.fma(x, f.number(kind, 1 / math.log(2)), f.number(kind, ROUND_TO_EVEN))
    power = shifted - ROUND_TO_EVEN
    rest = f.fma(power, f.number(kind, -_LOG2_HIGH), x)
    rest = f.fma(power, f.number(kind, -_LOG2_LOW), rest)
    total = f.number(kind, _EXP[0])
    for coefficient in _EXP[1:]:
        total = f.fma(total, rest, f.number(kind, coefficient))
    scale = ((shifted.bits(like(kind, I32)) << 23) + 0x3F800000).bits(kind)
    return f.select(x < -87.0, f.number(kind, 0.0), total * scale)


def exp64(f: Function, x: Value) -> Value:
    """e to the x in float64 for x of at most 0, within a few units of the last place; 0 below -708."""
    kind = x.type
    shifted = f.fma(x, f.number(kind, 1 / math.log(2)), f.number(kind, ROUND_TO_EVEN_64))
    power = shifted - ROUND_TO_EVEN_64
    rest = f.fma(power, f.number(kind, -_LOG2_HIGH_64), x)
    rest = f.fma(power, f.number(kind, -_LOG2_LOW_64), rest)
    total = f.number(kind, _EXP64[0])
    for coefficient in _EXP64[1:]:
        total = f.fma(total, rest, f.number(kind, coefficient))
    scale = ((shifted.bits(like(kind, I64)) << 52) + (1023 << 52)).bits(kind)
    return f.select(x < -708.0, f.number(kind, 0.0), total * scale)


def silu(f: Function, x: Value) -> Value:
    return x / (exp(f, -x) + 1.0)


def gelu_tanh(f: Function, x: Value) -> Value:
    """The tanh approximation (Hendrycks and Gimpel, 2016), written as x * sigmoid(2 u)."""
    inner = (x * x * x * 0.044715 + x) * (2 * math.sqrt(2 / math.pi))
    return x / (exp(f, -inner) + 1.0)


def gelu(f: Function, x: Value) -> Value:
    """The exact one, with an approximation of the error function."""
    scaled = f.absolute(x) * math.sqrt(0.5)
    t = 1.0 / (scaled * ERF_SLOPE + 1.0)
    total = f.number(x.type, ERF[4])
    for coefficient in reversed(ERF[:4]):
        total = total * t + coefficient
    tail = total * t * exp(f, -(scaled * scaled))
    # (1 + erf(x)) / 2 is 1 - tail / 2 to the right of 0 and tail / 2 to the left of it.
    return x * f.select(x < 0.0, tail * 0.5, 1.0 - tail * 0.5)


def load_float(f: Function, kind: str, lanes: int, address: Value, *, native: bool) -> Value:
    """Numbers stored as f32, f16, bf16 or int8 (without their step), as float32."""
    if kind == "int8":
        return f.load(vector(I8, lanes), address).to(I32).to(F32)
    if kind == "f32":
        return f.load(vector(F32, lanes), address)
    raw = f.load(vector(I16, lanes), address)
    return half_to_float(f, raw, native=native) if kind == "f16" else bfloat_to_float(raw)


def store_float(f: Function, kind: str, x: Value, address: Value, *, native: bool) -> None:
    """Stores float32 numbers as f32, f16 or bf16."""
    if kind == "f32":
        f.store(x, address)
        return
    f.store(float_to_half(f, x, native=native) if kind == "f16" else float_to_bfloat(f, x), address)
