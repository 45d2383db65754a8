"""Sines, cosines and tangents of float64, also of huge angles.

The C library is accurate to half a unit if it knows the remainder of the angle modulo pi / 2. From
2**26 on it uses some 120 bits of 2 / pi, of which few remain near a multiple of pi / 2: 100,000
units off at 1.6e74. Such angles are reduced here, with as many bits of 2 / pi as needed (Payne and
Hanek), and the C library gets the remainder.
"""

from __future__ import annotations

from functools import cache

from everygrad.backends.cpu.llvm.compiler import Emitter, Value

FUNCTIONS = ("sin", "cos", "tan")
_LENGTH = 1216  # bits of 2 / pi after the point: for the largest exponent, 971, and 190 more
_BYTES = 192  # and zeros before it
_LIMIT = 2.0**26


def _quarters() -> int:
    """The first bits of 2 / pi, by Machin's pi."""
    more = 64
    one = 1 << (_LENGTH + more)

    def arctan(n: int) -> int:
        total, term, k = 0, one // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term //= n * n
            k += 1
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    return ((2 * one * one // pi) >> more) & ((1 << _LENGTH) - 1)


# y = x 2 / pi modulo 4, with 2 bits before the point and 190 after it: the product of the 53 bits
# of x with the bits of 2 / pi that matter for its exponent. Then the fraction of y, in two doubles,
# times pi / 2
_REDUCE = """\
define internal { i64, double, double } @trig.reduce(double %x) noinline nounwind {
  %bits = bitcast double %x to i64
  %field = lshr i64 %bits, 52
  %exponent = and i64 %field, 2047
  %low = and i64 %bits, 4503599627370495
  %m = or i64 %low, 4503599627370496
  %e = sub i64 %exponent, 1075
  %first = sub i64 FIRST, %e
  %byte = lshr i64 %first, 3
  %bit = and i64 %first, 7
  %start = getelementptr i8, ptr @trig.quarters, i64 %byte
  %window = load i256, ptr %start, align 1
  %by = zext i64 %bit to i256
  %shifted = lshr i256 %window, %by
  %share = trunc i256 %shifted to i192
  %m.wide = zext i64 %m to i192
  %y = mul i192 %share, %m.wide
  %whole = lshr i192 %y, 190
  %quarters = trunc i192 %whole to i64
  %rest = shl i192 %y, 2
  %below = icmp slt i192 %rest, 0
  %carry = zext i1 %below to i64
  %q.up = add i64 %quarters, %carry
  %size = call i192 @llvm.abs.i192(i192 %rest, i1 false)
  %zeros = call i192 @llvm.ctlz.i192(i192 %size, i1 false)
  %n = call i192 @llvm.umin.i192(i192 %zeros, i192 180)
  %top = shl i192 %size, %n
  %high.bits = lshr i192 %top, 139
  %high.word = trunc i192 %high.bits to i64
  %high.whole = uitofp i64 %high.word to double
  %next = lshr i192 %top, 86
  %next.word = trunc i192 %next to i64
  %next.low = and i64 %next.word, 9007199254740991
  %next.whole = uitofp i64 %next.low to double
  %n.word = trunc i192 %n to i64
  %power = sub i64 970, %n.word
  %power.bits = shl i64 %power, 52
  %scale = bitcast i64 %power.bits to double
  %f = fmul double %high.whole, %scale
  %g.scaled = fmul double %next.whole, %scale
  %g = fmul double %g.scaled, 0x3CA0000000000000
  %r.near = fmul double %f, 0x3FF921FB54442D18
  %r.neg = fneg double %r.near
  %r.lost = call double @llvm.fma.f64(double %f, double 0x3FF921FB54442D18, double %r.neg)
  %r.more = call double @llvm.fma.f64(double %f, double 0x3C91A62633145C07, double %r.lost)
  %r.rest = call double @llvm.fma.f64(double %g, double 0x3FF921FB54442D18, double %r.more)
  %r = fadd double %r.near, %r.rest
  %r.taken = fsub double %r, %r.near
  %lo = fsub double %r.rest, %r.taken
  %negative = icmp slt i64 %bits, 0
  %flip = xor i1 %negative, %below
  %r.minus = fneg double %r
  %lo.minus = fneg double %lo
  %r.signed = select i1 %flip, double %r.minus, double %r
  %lo.signed = select i1 %flip, double %lo.minus, double %lo
  %q.minus = sub i64 0, %q.up
  %q = select i1 %negative, i64 %q.minus, i64 %q.up
  %a = insertvalue { i64, double, double } undef, i64 %q, 0
  %b = insertvalue { i64, double, double } %a, double %r.signed, 1
  %c = insertvalue { i64, double, double } %b, double %lo.signed, 2
  ret { i64, double, double } %c
}
"""
_FUNCTION = """\
define internal double @trig.{fn}(double %x) nounwind {{
  %size = call double @llvm.fabs.f64(double %x)
  %far = fcmp oge double %size, {limit}
  %finite = fcmp olt double %size, 0x7FF0000000000000
  %reduce = and i1 %far, %finite
  br i1 %reduce, label %huge, label %usual
usual:
  %plain = call double @{fn}(double %x)
  ret double %plain
huge:
  %parts = call {{ i64, double, double }} @trig.reduce(double %x)
  %q = extractvalue {{ i64, double, double }} %parts, 0
  %r = extractvalue {{ i64, double, double }} %parts, 1
  %lo = extractvalue {{ i64, double, double }} %parts, 2
{end}
}}"""
# In odd quadrants not -1 / tan(r): the errors of the C library, of the correction and of the
# quotient would add up. Instead the tangent of r -+ pi / 2; near the pole, where the rounding of
# that angle would matter, r is so small that a series gives 70 bits of its tangent
_TAN = """\
  %odd = trunc i64 %q to i1
  br i1 %odd, label %cotangent, label %tangent
tangent:
  %t = call double @tan(double %r)
  %slope = call double @llvm.fma.f64(double %t, double %t, double 1.0)
  %tan = call double @llvm.fma.f64(double %lo, double %slope, double %t)
  ret double %tan
cotangent:
  %r.size = call double @llvm.fabs.f64(double %r)
  %steep = fcmp olt double %r.size, 0x3F50000000000000
  br i1 %steep, label %pole, label %beside
beside:
  %r.below = fcmp olt double %r, 0.0
  %quarter = select i1 %r.below, double 0xBFF921FB54442D18, double 0x3FF921FB54442D18
  %quarter.lo = select i1 %r.below, double 0xBC91A62633145C07, double 0x3C91A62633145C07
  %v = fsub double %r, %quarter
  %v.back = fadd double %v, %quarter
  %v.lost = fsub double %r, %v.back
  %v.more = fadd double %v.lost, %lo
  %v.lo = fsub double %v.more, %quarter.lo
  %tv = call double @tan(double %v)
  %v.slope = call double @llvm.fma.f64(double %tv, double %tv, double 1.0)
  %cot = call double @llvm.fma.f64(double %v.lo, double %v.slope, double %tv)
  ret double %cot
pole:
  %square = fmul double %r, %r
  %p.last = fmul double %square, 0x3FABA1BA1BA1BA1C
  %p.0 = fadd double %p.last, 0x3FC1111111111111
  %p.1 = call double @llvm.fma.f64(double %square, double %p.0, double 0x3FD5555555555555)
  %cube = fmul double %square, %r
  %p = call double @llvm.fma.f64(double %cube, double %p.1, double %lo)
  %d = fadd double %r, %p
  %d.taken = fsub double %d, %r
  %d.lo = fsub double %p, %d.taken
  %u = fdiv double -1.0, %d
  %e.0 = call double @llvm.fma.f64(double %u, double %d, double 1.0)
  %e = call double @llvm.fma.f64(double %u, double %d.lo, double %e.0)
  %high = call double @llvm.fma.f64(double %u, double %e, double %u)
  ret double %high"""
_SIN = """\
  %quadrant = add i64 %q, {ahead}
  %s = call double @sin(double %r)
  %c = call double @cos(double %r)
  %sine = call double @llvm.fma.f64(double %lo, double %c, double %s)
  %lo.minus = fneg double %lo
  %cosine = call double @llvm.fma.f64(double %lo.minus, double %s, double %c)
  %odd = trunc i64 %quadrant to i1
  %value = select i1 %odd, double %cosine, double %sine
  %half = and i64 %quadrant, 2
  %back = icmp ne i64 %half, 0
  %minus = fneg double %value
  %out = select i1 %back, double %minus, double %value
  ret double %out"""
_ENDS = {"tan": _TAN, "sin": _SIN.format(ahead=0), "cos": _SIN.format(ahead=1)}
_LIBRARY = tuple(
    f"declare double @{name}(double) nounwind willreturn memory(none)" for name in FUNCTIONS
)
_INTRINSICS = (
    "declare double @llvm.fabs.f64(double)",
    "declare double @llvm.fma.f64(double, double, double)",
    "declare i192 @llvm.abs.i192(i192, i1)",
    "declare i192 @llvm.ctlz.i192(i192, i1)",
    "declare i192 @llvm.umin.i192(i192, i192)",
)


@cache
def _texts(fn: str) -> tuple[str, ...]:
    """The definitions that a module needs to call the function."""
    table = "".join(f"\\{byte:02X}" for byte in _quarters().to_bytes(_BYTES, "little"))
    return (
        *_LIBRARY,
        *_INTRINSICS,
        f'@trig.quarters = private constant [{_BYTES} x i8] c"{table}"',
        _REDUCE.replace("FIRST", str(_LENGTH - 190)),
        _FUNCTION.format(fn=fn, limit=f"{_LIMIT:.1f}", end=_ENDS[fn]),
    )


def expand(e: Emitter, fn: str, x: Value) -> Value | None:
    """`fn` of a double `x`, or None if it is another function."""
    if fn not in FUNCTIONS or x.type != "double":
        return None
    e.declarations.update(_texts(fn))
    return e.emit("double", f"call double @trig.{fn}(double {x.name})")
