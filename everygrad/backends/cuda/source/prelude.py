"""The device library: types, conversions, and the arithmetic C++ lacks or leaves undefined.

A kernel gets only the functions it names (`with_library`), so that there is less to compile, and no
headers, which NVRTC does not have. Division rounds down as Python's and gives 0 for a divisor of 0,
shifts beyond the width give 0 or -1, floats too large for an integer saturate: all as on the CPU.
"""

from __future__ import annotations

import re
from functools import lru_cache

from everygrad.backends.cuda.source.complexlib import COMPLEX

HEAD = """\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE static __device__ __forceinline__
"""

_PARTS = """
// Pack
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };
// u128
struct alignas(16) u128 { u64 a, b; };
// half_f
DEVICE float half_f(u16 bits) {
#if defined(__HIP__)
  _Float16 h; __builtin_memcpy(&h, &bits, 2); return (float)h;
#else
  float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits)); return f;
#endif
}
// half_bits
DEVICE u16 half_bits(float f) {
#if defined(__HIP__)
  _Float16 h = (_Float16)f; u16 bits; __builtin_memcpy(&bits, &h, 2); return bits;
#else
  u16 bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f)); return bits;
#endif
}
// brain_f
DEVICE float brain_f(u16 bits) { return __uint_as_float((u32)bits << 16); }
// brain_bits
DEVICE u16 brain_bits(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // two at once, one of them 0: four times as fast as the instruction for one
  u32 pair; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(f));
  return (u16)pair;
#else
  u32 w = __float_as_uint(f);
  if (f != f) return (u16)((w | 0x400000u) >> 16);  // a NaN must not be carried into infinity
  return (u16)((w + 0x7fffu + ((w >> 16) & 1u)) >> 16);
#endif
}
// brain_top
DEVICE u16 brain_top(float f) { return (u16)(__float_as_uint(f) >> 16); }  // of a rounded one
// half_round
DEVICE float half_round(float f) { return half_f(half_bits(f)); }
// brain_round
DEVICE float brain_round(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 pair; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(f), "f"(0.0f));
  return __uint_as_float(pair);
#else
  return brain_f(brain_bits(f));
#endif
}
// odd_f
DEVICE float odd_f(double x) {  // the last bit says "inexact": rounding that again rounds once
  float near = (float)x;
  if (x != x || (double)near == x) return near;
  u32 w = __float_as_uint(near);
  return __uint_as_float((w - (fabs((double)near) > fabs(x) ? 1u : 0u)) | 1u);
}
// odd_d
template <class T> DEVICE double odd_d(T x) {  // of 64 bits, likewise
  const T limit = (T)1 << 53;
  if (x < limit && x + limit > (T)0) return (double)x;
  return (double)((x >> 11) | (T)((x & 0x7ff) != 0)) * 2048.0;
}
// saturate
template <class T, class F> DEVICE T saturate(F x, T low, T high) {
  if (x != x) return (T)0;
  if (x < (F)low) return low;
  return x >= (F)high ? high : (T)x;
}
// exp_low
DEVICE float exp_low(float x) {  // for results of 8 or 11 bits
  float y; x *= 1.4426950408889634f;
#if defined(__HIP__)
  y = exp2f(x);
#else
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}
// normcdf_low
DEVICE float normcdf_low(float x) {  // within 2e-5 of the share of a normal below x, for halves
  float v = fmin(fabs(x), 14.5f) + 3.0f;
#if defined(__HIP__)
  v = 1.0f / v;
#else
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
#endif
  float p = fmaf(fmaf(fmaf(fmaf(fmaf(-38.550827f, v, 19.41507f), v, 7.7782001f), v, 2.935061f), v,
                      1.2191958f), v, 0.3983283f);
  float tail = p * v * exp_low(-0.5f * x * x);
  return x > 0.0f ? 1.0f - tail : tail;
}
// max_f
template <class T> DEVICE T max_f(T a, T b) {  // 0.0 is above -0.0
  return a > b || a != a || (a == b && copysign((T)1, a) > 0) ? a : b;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
DEVICE float max_f(float a, float b) {
  float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
#endif
// min_f
template <class T> DEVICE T min_f(T a, T b) {
  return a < b || a != a || (a == b && copysign((T)1, a) < 0) ? a : b;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
DEVICE float min_f(float a, float b) {
  float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
#endif
// pow_f
template <class T> DEVICE T pow_f(T x, T y) {  // small powers exactly rounded, as the CPU's are
  return y == (T)1 ? x : y == (T)2 ? x * x : pow(x, y);
}
// sign_f
template <class T> DEVICE T sign_f(T x) {
  return x != x ? x : x == (T)0 ? (T)0 : x < (T)0 ? (T)-1 : (T)1;
}
// is_inf
template <class T> DEVICE bool is_inf(T x) { return x == x && x - x != x - x; }
// angle_f
template <class T> DEVICE T angle_f(T x) {
  return x != x ? x : copysign((T)1, x) < (T)0 ? (T)3.14159265358979323846 : (T)0;
}
// bits_f
DEVICE i32 bits_f(float x) { return __float_as_int(x); }
DEVICE i64 bits_f(double x) { return __double_as_longlong(x); }
// float_of
DEVICE float float_of(i32 bits) { return __int_as_float(bits); }
DEVICE double float_of(i64 bits) { return __longlong_as_double(bits); }
// floordiv_f
template <class T> DEVICE T floordiv_f(T a, T b) {
  if (b == (T)0) return a / b;
  T rest = fmod(a, b), q = (a - rest) / b;
  if (rest != (T)0 && (b < (T)0) != (rest < (T)0)) q -= (T)1;
  if (q == (T)0) return copysign((T)0, a / b);
  T down = floor(q);
  return q - down > (T)0.5 ? down + (T)1 : down;
}
// mod_f
template <class T> DEVICE T mod_f(T a, T b) {
  T rest = fmod(a, b);
  if (b == (T)0) return rest;
  if (rest == (T)0) return copysign((T)0, b);
  return (b < (T)0) != (rest < (T)0) ? rest + b : rest;
}
// floordiv_i
template <class T> DEVICE T floordiv_i(T a, T b) {
  if (b == 0) return 0;
  if (b == (T)-1) return (T)(0 - (u64)a);
  T q = (T)(a / b);
  return (T)(q * b) != a && (a < 0) != (b < 0) ? (T)(q - 1) : q;
}
// mod_i
template <class T> DEVICE T mod_i(T a, T b) {
  if (b == 0 || b == (T)-1) return 0;
  T r = (T)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
// floordiv_u
template <class T> DEVICE T floordiv_u(T a, T b) { return b == 0 ? (T)0 : (T)(a / b); }
// mod_u
template <class T> DEVICE T mod_u(T a, T b) { return b == 0 ? (T)0 : (T)(a % b); }
// shl
template <class T> DEVICE T shl(T a, T n) {
  return (u64)n < 8 * sizeof(T) ? (T)((u64)a << n) : (T)0;
}
// shr
template <class T> DEVICE T shr(T a, T n) {
  return (u64)n < 8 * sizeof(T) ? (T)(a >> n) : a < (T)0 ? (T)-1 : (T)0;
}
// mulhi
DEVICE u32 mulhi(u32 a, u32 b) { return __umulhi(a, b); }
DEVICE i32 mulhi(i32 a, i32 b) { return __mulhi(a, b); }
DEVICE u64 mulhi(u64 a, u64 b) { return __umul64hi(a, b); }
DEVICE i64 mulhi(i64 a, i64 b) { return __mul64hi(a, b); }
template <class T> DEVICE T mulhi(T a, T b) { return (T)((i64)a * (i64)b >> (8 * sizeof(T))); }
// pow_u
template <class T> DEVICE T pow_u(T a, T n) {
  u64 r = 1, x = (u64)a, k = (u64)n;
  for (; k; k >>= 1) { if (k & 1) r *= x; x *= x; }
  return (T)r;
}
// pow_i
template <class T> DEVICE T pow_i(T a, T n) {  // negative powers are rounded towards 0
  if (n < 0) return a == 1 ? (T)1 : a == (T)-1 ? (n & 1 ? (T)-1 : (T)1) : (T)0;
  return pow_u(a, n);
}
// quotient
DEVICE i32 quotient(i32 n, u32 m, u32 s) { return (i32)((__umulhi((u32)n, m) + (u32)n) >> s); }
// shuffle_xor
template <class T> DEVICE T shuffle_xor(T x, int d) {  // of the lane whose number differs in bit d
  constexpr int N = (sizeof(T) + 3) / 4;
  union { T x; u32 w[N]; } u;
  u.x = x;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#if defined(__HIP__)
    u.w[i] = __shfl_xor(u.w[i], d, 32);
#else
    u.w[i] = __shfl_xor_sync(0xffffffffu, u.w[i], d);
#endif
  }
  return u.x;
}
// warp_reduce
template <int G, int S = 1, class T, class F>
DEVICE T warp_reduce(T x, F combine) {  // over G threads of a warp, S apart
#pragma unroll
  for (int d = G * S / 2; d >= S; d /= 2) x = combine(x, shuffle_xor(x, d));
  return x;
}
// block_reduce
template <int G, class T, class F> DEVICE T block_reduce(T x, F combine, T start, u32* shared) {
  if constexpr (G <= 32) {
    return warp_reduce<G>(x, combine);
  } else {  // the whole block is one group
    T* part = (T*)shared;
    x = warp_reduce<32>(x, combine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < G / 32 ? part[threadIdx.x % 32] : start;
    return warp_reduce<32>(x, combine);
  }
}
// fault
DEVICE void fault(u64* faults, i64 number, i64 value) {  // the first bad index is kept
  if (atomicAdd(faults, 1ull) == 0) { faults[1] = (u64)number; faults[2] = (u64)value; }
}
"""


def _split(text: str) -> dict[str, str]:
    """The parts by name, in their order."""
    parts = re.split(r"^// (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


LIBRARY = {**_split(_PARTS), **_split(COMPLEX)}
_ORDER = {name: i for i, name in enumerate(LIBRARY)}
_NAMES = re.compile(r"\b(?:" + "|".join(LIBRARY) + r")\b")


@lru_cache(maxsize=512)
def _needs(name: str) -> frozenset[str]:
    """The parts that a part names, directly or not, and itself."""
    found = {name}
    for other in set(_NAMES.findall(LIBRARY[name])) - {name}:
        found |= _needs(other)
    return frozenset(found)


def with_library(text: str) -> str:
    """A translation unit: the kernel and those parts that it names."""
    wanted: set[str] = set()
    for name in set(_NAMES.findall(text)):
        wanted |= _needs(name)
    return HEAD + "".join(LIBRARY[n] for n in sorted(wanted, key=_ORDER.__getitem__)) + text
