"""Integers in WGSL: 64-bit ones as pairs of words (low, high), and operations that WGSL lacks.

`l` stands for int64, `ul` for uint64. Division rounds down as in Python and gives 0 for a divisor
of 0, shifts by more than the width give what shifting bit by bit would: all as in NumPy.
"""

from __future__ import annotations

INTEGER_FUNCTIONS = """
fn mulhi_u(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let mid = al * bh + ((al * bl) >> 16u);
  let more = ah * bl + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (more >> 16u);
}
fn floordiv_i(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return -a; }
  let q = a / b;
  return select(q, q - 1, (q * b != a) && ((a < 0) != (b < 0)));
}
fn mod_i(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  let r = a - a / b * b;  // drivers of NVIDIA take the remainder of negative numbers for unsigned
  return select(r, r + b, r != 0 && ((r < 0) != (b < 0)));
}
fn floordiv_u(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}
fn mod_u(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}
fn shl_i(a: i32, n: i32) -> i32 {
  return select(0, a << (u32(n) & 31u), bitcast<u32>(n) < 32u);
}
fn shr_i(a: i32, n: i32) -> i32 { return a >> min(bitcast<u32>(n), 31u); }
fn shl_u(a: u32, n: u32) -> u32 { return select(0u, a << (n & 31u), n < 32u); }
fn shr_u(a: u32, n: u32) -> u32 { return select(0u, a >> (n & 31u), n < 32u); }
fn pow_u(a: u32, n: u32) -> u32 {
  var r = 1u;
  var x = a;
  var k = n;
  loop {
    if (k == 0u) { break; }
    if ((k & 1u) == 1u) { r = r * x; }
    x = x * x;
    k = k >> 1u;
  }
  return r;
}
fn pow_i(a: i32, n: i32) -> i32 {  // negative powers are rounded towards 0
  if (n < 0) {
    if (a == -1) { return select(-1, 1, (n & 1) == 0); }
    return select(0, 1, a == 1);
  }
  return bitcast<i32>(pow_u(bitcast<u32>(a), bitcast<u32>(n)));
}
fn sign_i(a: i32) -> i32 { return select(select(0, -1, a < 0), 1, a > 0); }
fn neg_i(a: i32) -> i32 { return bitcast<i32>(0u - bitcast<u32>(a)); }
fn l_of_i(a: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(a), bitcast<u32>(a >> 31u)); }
fn l_of_u(a: u32) -> vec2<u32> { return vec2<u32>(a, 0u); }
fn add_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn sub_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn neg_l(a: vec2<u32>) -> vec2<u32> { return sub_l(vec2<u32>(0u, 0u), a); }
fn mul_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x * b.x, mulhi_u(a.x, b.x) + a.x * b.y + a.y * b.x);
}
fn eq_l(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x == b.x && a.y == b.y; }
fn lt_ul(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn lt_l(a: vec2<u32>, b: vec2<u32>) -> bool {
  let ah = bitcast<i32>(a.y);
  let bh = bitcast<i32>(b.y);
  return ah < bh || (ah == bh && a.x < b.x);
}
fn is_negative_l(a: vec2<u32>) -> bool { return (a.y >> 31u) == 1u; }
fn max_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_l(a, b)); }
fn min_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, lt_l(a, b)); }
fn max_ul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_ul(a, b)); }
fn min_ul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, lt_ul(a, b)); }
fn abs_l(a: vec2<u32>) -> vec2<u32> { return select(a, neg_l(a), is_negative_l(a)); }
fn sign_l(a: vec2<u32>) -> vec2<u32> {
  if (is_negative_l(a)) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return vec2<u32>(select(0u, 1u, (a.x | a.y) != 0u), 0u);
}
fn shl_l(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  if (n.y != 0u || n.x > 63u) { return vec2<u32>(0u, 0u); }
  if (n.x >= 32u) { return vec2<u32>(0u, a.x << (n.x & 31u)); }
  if (n.x == 0u) { return a; }
  return vec2<u32>(a.x << n.x, (a.y << n.x) | (a.x >> (32u - n.x)));
}
fn shr_ul(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  if (n.y != 0u || n.x > 63u) { return vec2<u32>(0u, 0u); }
  if (n.x >= 32u) { return vec2<u32>(a.y >> (n.x & 31u), 0u); }
  if (n.x == 0u) { return a; }
  return vec2<u32>((a.x >> n.x) | (a.y << (32u - n.x)), a.y >> n.x);
}
fn shr_l(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  let plain = shr_ul(a, n);
  if (!is_negative_l(a)) { return plain; }
  return ~shr_ul(~a, n);
}
fn divmod_ul(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {  // quotient, remainder
  if ((b.x | b.y) == 0u) { return vec4<u32>(0u, 0u, 0u, 0u); }
  if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  for (var i = 0u; i < 64u; i = i + 1u) {
    let at = 63u - i;
    let bit = select(a.x >> (at & 31u), a.y >> (at & 31u), at >= 32u) & 1u;
    let over = r.y >> 31u;
    r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (over == 1u || !lt_ul(r, b)) { r = sub_l(r, b); q.x = q.x | 1u; }
  }
  return vec4<u32>(q, r);
}
fn floordiv_ul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divmod_ul(a, b).xy; }
fn mod_ul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divmod_ul(a, b).zw; }
fn floordiv_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let d = divmod_ul(abs_l(a), abs_l(b));
  if (is_negative_l(a) == is_negative_l(b)) { return d.xy; }
  let rest = (d.z | d.w) != 0u;
  return select(neg_l(d.xy), ~d.xy, rest);
}
fn mod_l(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = divmod_ul(abs_l(a), abs_l(b)).zw;
  if ((r.x | r.y) == 0u) { return r; }
  let s = select(r, neg_l(r), is_negative_l(a));
  return select(s, add_l(s, b), is_negative_l(a) != is_negative_l(b));
}
fn pow_ul(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  var r = vec2<u32>(1u, 0u);
  var x = a;
  var k = n;
  loop {
    if ((k.x | k.y) == 0u) { break; }
    if ((k.x & 1u) == 1u) { r = mul_l(r, x); }
    x = mul_l(x, x);
    k = shr_ul(k, vec2<u32>(1u, 0u));
  }
  return r;
}
fn pow_l(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  if (!is_negative_l(n)) { return pow_ul(a, n); }
  if (eq_l(a, vec2<u32>(0xffffffffu, 0xffffffffu))) {
    return select(a, vec2<u32>(1u, 0u), (n.x & 1u) == 0u);
  }
  return vec2<u32>(select(0u, 1u, eq_l(a, vec2<u32>(1u, 0u))), 0u);
}
fn f32_of_ul(a: vec2<u32>) -> f32 {  // rounded once: the bits beyond 32 only break ties
  if (a.y == 0u) { return f32(a.x); }
  let z = countLeadingZeros(a.y);
  let top = shl_l(a, vec2<u32>(z, 0u));
  let kept = top.y | select(0u, 1u, top.x != 0u);
  return f32(kept) * bitcast<f32>((127u + 32u - z) << 23u);
}
fn odd_of_u(a: u32) -> f32 {  // the last bit marks inexact: rounding again then rounds only once
  return f32(select(a, (a & 0xffffff00u) | select(0u, 256u, (a & 255u) != 0u), a >= 0x1000000u));
}
fn odd_of_i(a: i32) -> f32 {
  let m = odd_of_u(u32(abs(a)));  // also of the smallest: its bits are its magnitude
  return select(m, -m, a < 0);
}
fn odd_of_ul(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return odd_of_u(a.x); }
  let z = countLeadingZeros(a.y);
  let top = shl_l(a, vec2<u32>(z, 0u));
  return odd_of_u(top.y | select(0u, 1u, top.x != 0u)) * bitcast<f32>((127u + 32u - z) << 23u);
}
fn odd_of_l(a: vec2<u32>) -> f32 {
  let m = odd_of_ul(abs_l(a));
  return select(m, -m, is_negative_l(a));
}
fn f32_of_l(a: vec2<u32>) -> f32 {
  let m = f32_of_ul(abs_l(a));
  return select(m, -m, is_negative_l(a));
}
fn ul_of_f(x: f32) -> vec2<u32> {
  if (is_nan(x) || x < 1.0) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let b = bitcast<u32>(x);
  let m = vec2<u32>((b & 0x007fffffu) | 0x00800000u, 0u);
  let e = b >> 23u;
  if (e >= 150u) { return shl_l(m, vec2<u32>(e - 150u, 0u)); }
  return shr_ul(m, vec2<u32>(150u - e, 0u));
}
fn l_of_f(x: f32) -> vec2<u32> {
  if (x >= 9223372036854775808.0) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0) { return vec2<u32>(0u, 0x80000000u); }
  let m = ul_of_f(abs_f(x));
  return select(m, neg_l(m), x < 0.0);
}
"""
