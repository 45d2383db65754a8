"""Conversions of float16 for processors that have no instruction for them, as LLVM IR.

There LLVM calls functions of a compiler's runtime library, which a Python process has not loaded:
a kernel would not link, or would crash. Virtual machines often hide F16C.
Numbers are rounded to the nearest, ties to even; a NaN stays NaN and becomes quiet.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("__truncsfhf2", "__truncdfhf2", "__extendhfsf2")  # the names that LLVM calls

SOURCE = """
define half @__truncsfhf2(float %x) nounwind {
  %u = bitcast float %x to i32
  %high = lshr i32 %u, 16
  %sign = and i32 %high, 32768
  %a = and i32 %u, 2147483647
  ; below 2^-14: 0.5 has the last place of a subnormal half, the addition rounds to it
  %size = bitcast i32 %a to float
  %shifted = fadd float %size, 0.5
  %small.bits = bitcast float %shifted to i32
  %small = sub i32 %small.bits, 1056964608
  ; another exponent, half of the last place but for ties at an even number
  %down = lshr i32 %a, 13
  %odd = and i32 %down, 1
  %biased = add i32 %a, -939520001
  %rounded = add i32 %biased, %odd
  %normal = lshr i32 %rounded, 13
  %payload = and i32 %down, 511
  %nan = or i32 %payload, 32256
  %is.small = icmp ult i32 %a, 947912704
  %is.large = icmp uge i32 %a, 1199566848
  %is.nan = icmp ugt i32 %a, 2139095040
  %r0 = select i1 %is.small, i32 %small, i32 %normal
  %r1 = select i1 %is.large, i32 31744, i32 %r0
  %r2 = select i1 %is.nan, i32 %nan, i32 %r1
  %r3 = or i32 %r2, %sign
  %r4 = trunc i32 %r3 to i16
  %r = bitcast i16 %r4 to half
  ret half %r
}

; by a float that is rounded to odd: rounding it again gives what rounding once would
define half @__truncdfhf2(double %x) nounwind {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %inexact = fcmp one double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %back.size = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %back.size, %size
  %bits = bitcast float %near to i32
  %less = sext i1 %above to i32
  %toward = add i32 %bits, %less
  %odd = or i32 %toward, 1
  %chosen = select i1 %inexact, i32 %odd, i32 %bits
  %f = bitcast i32 %chosen to float
  %r = call half @__truncsfhf2(float %f)
  ret half %r
}

define float @__extendhfsf2(half %x) nounwind {
  %u = bitcast half %x to i16
  %w = zext i16 %u to i32
  %low = and i32 %w, 32767
  %sign.low = and i32 %w, 32768
  %sign = shl i32 %sign.low, 16
  %moved = shl i32 %low, 13
  %tiny = bitcast i32 %moved to float
  %scaled = fmul float %tiny, 0x46F0000000000000
  %number = bitcast float %scaled to i32
  %special = or i32 %moved, 2139095040
  %quiet = or i32 %special, 4194304
  %is.special = icmp uge i32 %low, 31744
  %is.nan = icmp ugt i32 %low, 31744
  %r0 = select i1 %is.special, i32 %special, i32 %number
  %r1 = select i1 %is.nan, i32 %quiet, i32 %r0
  %r2 = or i32 %r1, %sign
  %r = bitcast i32 %r2 to float
  ret float %r
}

declare double @llvm.fabs.f64(double)
"""


def needed(features: Mapping[str, bool]) -> bool:
    """Whether the processor has no conversions of its own."""
    return not (features.get("f16c") or features.get("neon") or features.get("fp-armv8"))
