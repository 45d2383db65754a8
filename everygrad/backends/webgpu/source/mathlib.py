"""Functions of one float32 in WGSL, to a few units in the last place on every driver.

Drivers' own exp, sin or pow may be off by thousands of units, drop NaN, or fail at extremes, so
these use +, -, *, / and bit operations only. Polynomials are least-maximum fits to float64 values.
Numbers are split by bit masks and exact products: a driver may fuse a multiply and an add, and the
result stays right. Infinities and NaN are made at run time, since WGSL refuses them as constants.

WGSL lets a driver flush subnormal numbers to 0 in arithmetic and comparisons, be off by 2.5 units
in a division, and by more in a square root. So `div_f` and `sqrt_f` correct the driver's result by
its exact remainder, in integers; a plain / is used where an error of 2.5 units does no harm.
Subnormal numbers are tested, scaled and rounded by their bits, which no driver changes.
"""

from __future__ import annotations


def exp_low(value: str = "f32", name: str = "exp_low_f") -> str:
    """A WGSL function: exp of a number that is not above 0, or NaN, for scalars or vec4. It has no
    branches, and returns 0 where the result would be subnormal."""
    bits, whole = value.replace("f32", "u32"), value.replace("f32", "i32")
    return (
        f"fn {name}(x: {value}) -> {value} {{\n"
        f"  let y = max(x, {value}(-87.0));\n  let k = round(y * 1.4426950408889634);\n"
        "  let r = (y - k * 0.693145751953125) - k * 1.428606765330187e-06;\n"
        "  let p = 0.5 + r * (0.16666512191295624 + r * (0.0416661873459816\n"
        "    + r * (0.008369598537683487 + r * 0.0013951717410236597)));\n"
        f"  let e = bitcast<{whole}>(1.0 + (r + r * r * p)) + {whole}(k) * {whole}(1 << 23u);\n"
        f"  let found = select(bitcast<{value}>(e), {value}(0.0), x < {value}(-87.0));\n"
        f"  let bits = bitcast<{bits}>(x) & {bits}(0x7fffffffu);\n"
        f"  return select(found, x, bits > {bits}(0x7f800000u));\n}}\n"
    )


FLOAT_FUNCTIONS = """
fn inf_f() -> f32 { var b = 0x7f800000u; return bitcast<f32>(b); }
fn nan_f() -> f32 { var b = 0x7fc00000u; return bitcast<f32>(b); }
fn bits_f(b: u32) -> f32 { var v = b; return bitcast<f32>(v); }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn abs_f(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu); }
fn with_sign(x: f32, s: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}
fn even_f(x: f32) -> f32 {  // the last bit cleared: a driver must not replace (1 + x) - 1 by x
  return bitcast<f32>(bitcast<u32>(x) & 0xfffffffeu);
}
fn neg_f(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u); }
fn times_zero_f(x: f32, zero: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return nan_f(); }
  return bitcast<f32>((bitcast<u32>(x) ^ bitcast<u32>(zero)) & 0x80000000u);
}
fn is_zero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0u; }
fn is_negative(x: f32) -> bool { return (bitcast<u32>(x) >> 31u) == 1u; }
fn are_tiny(a: f32, b: f32) -> bool {  // both 0 or subnormal: equal to drivers that flush
  return ((bitcast<u32>(a) | bitcast<u32>(b)) & 0x7f800000u) == 0u;
}
fn order_f(x: f32) -> i32 {  // grows with x; both zeros give 0
  let m = bitcast<i32>(bitcast<u32>(x) & 0x7fffffffu);
  return select(m, -m, is_negative(x));
}
fn eq_f(a: f32, b: f32) -> bool {
  if (are_tiny(a, b)) { return order_f(a) == order_f(b); }
  return a == b;
}
fn lt_f(a: f32, b: f32) -> bool {
  if (are_tiny(a, b)) { return order_f(a) < order_f(b); }
  return a < b;
}
fn le_f(a: f32, b: f32) -> bool {
  if (are_tiny(a, b)) { return order_f(a) <= order_f(b); }
  return a <= b;
}
fn rank_f(x: f32) -> i32 {  // grows with x; -0.0 is below 0.0
  let m = bitcast<i32>(bitcast<u32>(x) & 0x7fffffffu);
  return select(m, ~m, is_negative(x));
}
fn max_f(a: f32, b: f32) -> f32 {  // as integers: a driver may replace a maximum of floats
  if (is_nan(a) || is_nan(b)) { return select(b, a, is_nan(a)); }  // by one that drops NaN
  return select(b, a, rank_f(b) <= rank_f(a));
}
fn min_f(a: f32, b: f32) -> f32 {
  if (is_nan(a) || is_nan(b)) { return select(b, a, is_nan(a)); }
  return select(b, a, rank_f(a) <= rank_f(b));
}
fn plus_zero_f(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  return bitcast<f32>(select(bits, 0u, bits == 0x80000000u));
}
fn sign_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  return select(select(1.0, -1.0, is_negative(x)), 0.0, is_zero(x));
}
fn rounded_f(x: f32, y: f32) -> f32 { return select(y, x, abs_f(x) >= 8388608.0 || is_nan(x)); }
fn floor_f(x: f32) -> f32 {
  if (bitcast<u32>(x) - 0x80000001u < 0x007fffffu) { return -1.0; }  // negative and subnormal
  return with_sign(rounded_f(x, floor(x)), x);
}
fn ceil_f(x: f32) -> f32 {
  if (bitcast<u32>(x) - 1u < 0x007fffffu) { return 1.0; }
  return with_sign(rounded_f(x, ceil(x)), x);
}
fn trunc_f(x: f32) -> f32 { return with_sign(rounded_f(x, trunc(x)), x); }
fn round_f(x: f32) -> f32 { return with_sign(rounded_f(x, round(x)), x); }
fn parts_f(b: u32) -> vec2<i32> {  // of a positive number's bits: 24 of significand, exponent
  if (b >= 0x00800000u) {
    return vec2<i32>(bitcast<i32>((b & 0x007fffffu) | 0x00800000u), i32(b >> 23u));
  }
  let z = countLeadingZeros(b) - 8u;
  return vec2<i32>(bitcast<i32>(b << z), 1 - i32(z));
}
fn packed_f(v: u32, e: i32) -> u32 {  // bits of v * 2^(e - 152), v of 26 bits, rounded once
  if (e > 254) { return 0x7f800000u; }
  let by = 2u + u32(clamp(1 - e, 0, 27));
  let half = 1u << (by - 1u);
  let m = (v + (half - 1u) + ((v >> by) & 1u)) >> by;
  return m + (u32(max(e, 1) - 1) << 23u);
}
fn div_f(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let s = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  if (x - 1u >= 0x7f7fffffu || y - 1u >= 0x7f7fffffu) {  // 0, infinite or NaN
    if (x == y || max(x, y) > 0x7f800000u) { return nan_f(); }
    return bits_f(s | select(0u, 0x7f800000u, x == 0x7f800000u || y == 0u));
  }
  let m = parts_f(x);
  let d = parts_f(y);
  let up = select(25u, 24u, m.x >= d.x);
  let inverse = 1.0 / f32(d.x);
  var q = i32(f32(m.x) * inverse * select(33554432.0, 16777216.0, m.x >= d.x));
  var r = (m.x << up) - q * d.x;  // the whole remainder: what overflows cancels
  let n = i32(floor(f32(r) * inverse));
  q = q + n;
  r = r - n * d.x;
  if (r < 0) { q = q - 1; r = r + d.x; }
  if (r >= d.x) { q = q + 1; r = r - d.x; }
  let v = bitcast<u32>(q << 1u) | select(0u, 1u, r != 0);
  return bitcast<f32>(s | packed_f(v, m.y - d.y + 151 - i32(up)));
}
fn sqrt_f(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  if (b - 1u >= 0x7f7fffffu) {  // 0, negative, infinite or NaN
    return select(nan_f(), x, is_zero(x) || is_nan(x) || b == 0x7f800000u);
  }
  let p = parts_f(b);
  let odd = (p.y + 1) & 1;
  let m = p.x << u32(odd);
  var q = i32(sqrt(f32(m) * 1.1920928955078125e-07) * 16777216.0);
  let square = m << 25u;
  q = q + i32(floor(f32(square - q * q) / f32(2 * q)));
  let r = square - q * q;
  q = q + select(select(0, 1, r > 2 * q), -1, r < 0);
  let e = ((p.y - 127 - odd) >> 1u) + 126;
  return bitcast<f32>(bitcast<u32>(((q + 1) >> 1u) + (e << 23u)));
}
fn pow2_f(k: i32) -> f32 { return bitcast<f32>(bitcast<u32>((k + 127) << 23u)); }
fn scale_f(x: f32, k: i32) -> f32 {  // x * 2^k of 0 or a normal x, rounded once
  let b = bitcast<u32>(x);
  let e = i32((b >> 23u) & 255u) + k;
  if (e > 0 && e < 255) { return bitcast<f32>(b + (bitcast<u32>(k) << 23u)); }
  let v = ((b & 0x007fffffu) | 0x00800000u) << 2u;
  return bitcast<f32>((b & 0x80000000u) | packed_f(v, e));
}
fn lift_f(x: f32) -> f32 {  // x * 2^64 of an x that is small, 0 or subnormal
  let b = bitcast<u32>(x) & 0x7fffffffu;
  if (b < 0x00800000u) { return with_sign(f32(b) * 2.5849394142282115e-26, x); }
  return bitcast<f32>(bitcast<u32>(x) + 0x20000000u);
}
fn exp_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x > 89.0) { return inf_f(); }
  if (x < -104.0) { return 0.0; }
  let k = round(x * 1.4426950408889634);
  let r = (x - k * 0.693145751953125) - k * 1.428606765330187e-06;
  let p = 0.5 + r * (0.16666512191295624 + r * (0.0416661873459816
    + r * (0.008369598537683487 + r * 0.0013951717410236597)));
  return scale_f(1.0 + (r + r * r * p), i32(k));
}
fn exp2_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x >= 128.0) { return inf_f(); }
  if (x < -151.0) { return 0.0; }
  let k = round(x);
  let r = (x - k) * 0.6931471805599453;
  let p = 0.5 + r * (0.16666512191295624 + r * (0.0416661873459816
    + r * (0.008369598537683487 + r * 0.0013951717410236597)));
  return scale_f(1.0 + (r + r * r * p), i32(k));
}
fn expm1_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x > 89.0) { return inf_f(); }
  if (x < -18.0) { return -1.0; }
  if (abs_f(x) < 2.9802322387695312e-08) { return x; }
  let k = round(x * 1.4426950408889634);
  let r = (x - k * 0.693145751953125) - k * 1.428606765330187e-06;
  let p = 0.5 + r * (0.1666666716337204 + r * (0.041666340082883835 + r * (0.008333271369338036
    + r * (0.0013942059595137835 + r * 0.0001991503086173907))));
  let e = r + r * r * p;
  if (k == 0.0) { return e; }
  if (k > 24.0) { return scale_f(1.0 + e, i32(k)); }
  let s = pow2_f(i32(k));
  return s * e + (s - 1.0);
}
fn exponent_f(x: f32) -> vec2<i32> {  // exponent and bits of the mantissa in [sqrt(1/2), sqrt(2))
  var b = bitcast<u32>(x);
  var e = 0;
  if (b < 0x00800000u) {
    let z = countLeadingZeros(b) - 8u;
    b = b << z;
    e = -i32(z);
  }
  let i = b + (0x3f800000u - 0x3f3504f3u);
  return vec2<i32>(e + i32(i >> 23u) - 127, i32((i & 0x007fffffu) + 0x3f3504f3u));
}
fn log_rest_f(f: f32, s: f32) -> f32 {  // log(1 + f) = f - f*f/2 + this, s = f / (2 + f)
  let z = s * s;
  let r = z * (0.6666666269302368 + z * (0.4000033736228943
    + z * (0.28537169098854065 + z * 0.23584990203380585)));
  return s * (0.5 * f * f + r);
}
fn log_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if ((bitcast<u32>(x) & 0x7fffffffu) == 0u) { return -inf_f(); }
  if ((bitcast<u32>(x) >> 31u) == 1u) { return nan_f(); }
  if (is_inf(x)) { return x; }
  let p = exponent_f(x);
  let f = bitcast<f32>(p.y) - 1.0;
  let k = f32(p.x);
  let rest = log_rest_f(f, f / (2.0 + f));
  return k * 0.693145751953125 + (f - (0.5 * f * f - (rest + k * 1.428606765330187e-06)));
}
fn log2_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if ((bitcast<u32>(x) & 0x7fffffffu) == 0u) { return -inf_f(); }
  if ((bitcast<u32>(x) >> 31u) == 1u) { return nan_f(); }
  if (is_inf(x)) { return x; }
  let p = exponent_f(x);
  let f = bitcast<f32>(p.y) - 1.0;
  let rest = log_rest_f(f, f / (2.0 + f));
  let h = 0.5 * f * f;
  let hi = bitcast<f32>(bitcast<u32>(f - h) & 0xfffff000u);
  let lo = ((f - hi) - h) + rest;
  return (lo + hi) * -0.00017605285393074155 + lo * 1.44287109375 + hi * 1.44287109375 + f32(p.x);
}
fn log1p_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || a < 2.9802322387695312e-08) { return x; }
  if (a < 0.00390625) { return x - x * x * (0.5 - x * 0.3333333432674408); }
  if (x <= -1.0) { return select(nan_f(), -inf_f(), x == -1.0); }
  if (x >= 16777216.0) { return log_f(x); }
  let u = even_f(1.0 + x);
  return log_f(u) + (x - (u - 1.0)) / u;
}
fn product_f(a: f32, b: f32) -> vec2<f32> {  // a * b, rounded, and its error
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
  let al = a - ah;
  let bl = b - bh;
  let p = even_f(a * b);  // else a driver may fuse it into ah * bh - a * b, and the error is lost
  return vec2<f32>(p, (((ah * bh - p) + ah * bl) + al * bh) + al * bl);
}
fn sum_f(a: f32, b: f32) -> vec2<f32> {  // a + b where a is the larger or 0, and its error
  let s = even_f(a + b);
  return vec2<f32>(s, b - (s - a));
}
fn log2_pair_f(x: f32) -> vec2<f32> {  // of a positive finite x, to about 34 bits
  let p = exponent_f(x);
  let f = bitcast<f32>(p.y) - 1.0;
  let d = even_f(2.0 + f);
  let dl = f - (d - 2.0);
  let s = f / d;
  let q = product_f(s, d);
  let sl = (((f - q.x) - q.y) - s * dl) / d;
  let z = product_f(s, s);
  let c = product_f(z.x, s);  // the cube, which must be exact too
  let cl = c.y + (z.y + 3.0 * s * sl) * s;
  let t = product_f(c.x, 0.6666666865348816);
  let tl = t.y + (cl * 0.6666666865348816 - c.x * 1.9868215517249155e-08);
  let rest = c.x * z.x * (0.4000000059604645 + z.x * (0.2857171297073364
    + z.x * (0.22193199396133423 + z.x * 0.19335989654064178)));
  let h = sum_f(2.0 * s, t.x);
  let l = sum_f(h.x, h.y + (2.0 * sl + tl + rest));
  let m = product_f(l.x, 1.4426950216293335);
  let lo = m.y + (l.x * 1.9259629911266175e-08 + l.y * 1.4426950216293335);
  let total = sum_f(f32(p.x), m.x);
  return sum_f(total.x, total.y + lo);
}
fn pow_f(x: f32, y: f32) -> f32 {
  if (is_zero(y) || x == 1.0) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return nan_f(); }
  let a = abs_f(x);
  let whole = abs_f(y) >= 8388608.0 || (abs_f(y) >= 1.0 && floor(y) == y);
  let odd = whole && abs_f(y) < 16777216.0 && (i32(clamp(y, -16777216.0, 16777216.0)) & 1) != 0;
  let s = select(1.0, -1.0, is_negative(x) && odd);
  if (is_inf(y)) {
    if (a == 1.0) { return 1.0; }
    return select(0.0, inf_f(), (a > 1.0) == (y > 0.0));
  }
  if (is_zero(x) || is_inf(x)) {
    return with_sign(select(0.0, inf_f(), is_zero(x) == is_negative(y)), s);
  }
  if (is_negative(x) && !whole) { return nan_f(); }
  let l = log2_pair_f(a);
  let rough = l.x * y;
  if (rough > 129.0) { return with_sign(inf_f(), s); }
  if (rough < -151.0) { return with_sign(0.0, s); }
  let p = product_f(l.x, y);
  let k = round(p.x);
  let r = (p.x - k) + (p.y + l.y * y);
  let e = r * (0.6931471824645996 + r * (0.24022650718688965 + r * (0.05550410971045494
    + r * (0.009618032723665237 + r * (0.0013333425158634782 + r * (0.00015468390483874828
    + r * 1.5316200006054714e-05))))));
  return with_sign(scale_f(1.0 + e, i32(k)), s);
}
fn reduce_far_f(a: f32, q: ptr<function, i32>) -> f32 {  // by 96 bits of 2 / pi
  var table = array<u32, 8>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                            0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
  let b = bitcast<u32>(a);
  let m = (b & 0x007fffffu) | 0x00800000u;
  let s = (b >> 23u) - 120u;
  let at = s >> 5u;
  let by = s & 31u;
  var w = vec4<u32>(table[at], table[at + 1u], table[at + 2u], table[min(at + 3u, 7u)]);
  if (by > 0u) {
    let down = 32u - by;
    w = vec4<u32>((w.x << by) | (w.y >> down), (w.y << by) | (w.z >> down),
                  (w.z << by) | (w.w >> down), 0u);
  }
  let low = m * w.y + mulhi_u(m, w.z);
  let carry = select(0u, 1u, low < m * w.y);
  let high = m * w.x + mulhi_u(m, w.y) + carry;
  var f = vec2<u32>(low << 2u, (high << 2u) | (low >> 30u));
  var k = i32(high >> 30u);
  let up = (f.y >> 31u) == 1u;
  if (up) { f = neg_l(f); k = k + 1; }
  *q = k & 3;
  let r = f32_of_ul(f) * 5.421010862427522e-20 * 1.5707963705062866;
  return select(r, -r, up);
}
fn reduce_f(x: f32, q: ptr<function, i32>) -> f32 {  // to [-pi/4, pi/4] and a quadrant
  let a = abs_f(x);
  var r: f32;
  if (a < 512.0) {
    let k = round(a * 0.6366197723675814);
    r = (((a - k * 1.57073974609375) - k * 5.657970905303955e-05)
      - k * 9.920881893776823e-10) - k * 5.390302529957765e-15;
    *q = i32(k) & 3;
  } else {
    r = reduce_far_f(a, q);
  }
  return r;
}
fn sin_near_f(r: f32) -> f32 {
  let z = r * r;
  return r + r * z * (-0.1666666716337204 + z * (0.008333329111337662
    + z * (-0.00019839256128761917 + z * 2.7175644845556235e-06)));
}
fn cos_near_f(r: f32) -> f32 {
  let z = r * r;
  return 1.0 - (0.5 * z - z * z * (0.0416666679084301 + z * (-0.0013888883404433727
    + z * (2.479943577782251e-05 + z * -2.720329916883202e-07))));
}
fn sin_f(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return nan_f(); }
  if (abs_f(x) < 0.000244140625) { return x; }
  var q = 0;
  let r = reduce_f(x, &q);
  var y = select(sin_near_f(r), cos_near_f(r), (q & 1) == 1);
  y = select(y, -y, (q & 2) == 2);
  return select(y, -y, is_negative(x));
}
fn cos_f(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return nan_f(); }
  var q = 0;
  let r = reduce_f(x, &q);
  let y = select(cos_near_f(r), sin_near_f(r), (q & 1) == 1);
  return select(y, -y, ((q + 1) & 2) == 2);
}
fn tan_f(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return nan_f(); }
  if (abs_f(x) < 0.000244140625) { return x; }
  var q = 0;
  let r = reduce_f(x, &q);
  let s = sin_near_f(r);
  let c = cos_near_f(r);
  let odd = (q & 1) == 1;
  let y = div_f(select(s, -c, odd), select(c, s, odd));
  return select(y, -y, is_negative(x));
}
fn asin_near_f(x: f32) -> f32 {
  let z = x * x;
  return x + x * z * (0.16666753590106964 + z * (0.07495232671499252 + z * (0.04547834023833275
    + z * (0.02414099872112274 + z * 0.04223053157329559))));
}
fn asin_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || a > 1.0) { return nan_f(); }
  if (a < 0.000244140625) { return x; }
  if (a < 0.5) { return asin_near_f(x); }
  let h = asin_near_f(sqrt_f((1.0 - a) * 0.5));
  return with_sign(1.5707963705062866 - (2.0 * h + 4.371139000186241e-08), x);
}
fn acos_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || a > 1.0) { return nan_f(); }
  if (a < 0.5) { return 1.5707963705062866 - (asin_near_f(x) + 4.371139000186241e-08); }
  let h = 2.0 * asin_near_f(sqrt_f((1.0 - a) * 0.5));
  return select(3.1415927410125732 - (h + 8.742278000372482e-08), h, x > 0.0);
}
fn atan_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || a < 0.000244140625) { return x; }
  var base = 0.0;
  var r = a;
  if (a > 0.4142135623730950) {
    let far = a > 2.414213562373095;
    base = select(0.7853981852531433, 1.5707963705062866, far);
    r = div_f(select(a - 1.0, -1.0, far), select(a + 1.0, a, far));
  }
  let z = r * r;
  let y = r * z * (-0.33333316445350647 + z * (0.1999848335981369 + z * (-0.1424373835325241
    + z * (0.10595136135816574 + z * -0.06081148236989975))));
  return with_sign(base + (y + r), x);
}
fn atan2_f(y: f32, x: f32) -> f32 {
  if (is_nan(x) || is_nan(y)) { return nan_f(); }
  if (is_zero(y)) { return with_sign(select(0.0, 3.1415927410125732, is_negative(x)), y); }
  if (is_zero(x)) { return with_sign(1.5707963705062866, y); }
  let ax = abs_f(x);
  let ay = abs_f(y);
  let steep = bitcast<u32>(ay) > bitcast<u32>(ax);
  var a = 0.7853981852531433;
  if (!(is_inf(x) && is_inf(y))) {
    a = atan_f(div_f(select(ay, ax, steep), select(ax, ay, steep)));
  }
  if (steep) { a = 1.5707963705062866 - a; }
  if (is_negative(x)) { a = 3.1415927410125732 - (a + 8.742278000372482e-08); }
  return with_sign(a, y);
}
fn sinh_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let a = abs_f(x);
  if (a < 0.000244140625) { return x; }
  if (a < 1.0) {
    let z = x * x;
    return x + x * z * (0.1666666716337204 + z * (0.008333351463079453
      + z * (0.00019835961575154215 + z * 2.8180634217278566e-06)));
  }
  if (a > 88.0) {
    let h = exp_f(0.5 * a);
    return with_sign((0.5 * h) * h, x);
  }
  let e = exp_f(a);
  return with_sign(0.5 * e - 0.5 / e, x);
}
fn cosh_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let a = abs_f(x);
  if (a > 88.0) {
    let h = exp_f(0.5 * a);
    return (0.5 * h) * h;
  }
  let e = exp_f(a);
  return 0.5 * e + 0.5 / e;
}
fn tanh_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let a = abs_f(x);
  if (a < 0.000244140625) { return x; }
  if (a < 0.625) {
    let z = x * x;
    return x + x * z * (-0.3333328068256378 + z * (0.1333138346672058 + z * (-0.05373400077223778
      + z * (0.020618122071027756 + z * -0.005679303780198097))));
  }
  if (a > 10.0) { return with_sign(1.0, x); }
  return with_sign(1.0 - 2.0 / (exp_f(2.0 * a) + 1.0), x);
}
fn asinh_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || is_inf(x) || a < 0.000244140625) { return x; }
  if (a > 1e8) { return with_sign(log_f(a) + 0.6931471824645996, x); }
  let z = a * a;
  return with_sign(log1p_f(a + div_f(z, 1.0 + sqrt_f(1.0 + z))), x);
}
fn acosh_f(x: f32) -> f32 {
  if (is_nan(x) || x < 1.0) { return nan_f(); }
  if (is_inf(x)) { return x; }
  if (x > 1e8) { return log_f(x) + 0.6931471824645996; }
  let t = x - 1.0;
  return log1p_f(t + sqrt_f(2.0 * t + t * t));
}
fn atanh_f(x: f32) -> f32 {
  let a = abs_f(x);
  if (is_nan(x) || a > 1.0) { return nan_f(); }
  if (a < 0.000244140625) { return x; }
  if (a == 1.0) { return with_sign(inf_f(), x); }
  return with_sign(0.5 * log1p_f(2.0 * a + div_f(2.0 * a * a, 1.0 - a)), x);
}
fn fmod_f(x: f32, y: f32) -> f32 {  // exact: long division of the significands
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return nan_f(); }
  if (a < b) { return x; }
  let m = parts_f(a);
  let d = parts_f(b);
  let inverse = 1.0 / f32(d.x);
  var e = m.y;
  var r = select(m.x, m.x - d.x, m.x >= d.x);
  loop {
    if (e == d.y) { break; }
    let by = min(e - d.y, 7);  // with 24 bits of r these fill an i32
    r = r << u32(by);
    r = r - i32(f32(r) * inverse) * d.x;
    if (r < 0) { r = r + d.x; }
    if (r >= d.x) { r = r - d.x; }
    e = e - by;
  }
  if (r == 0) { return with_sign(0.0, x); }
  return with_sign(scale_f(f32(r), e - 150), x);
}
fn mod_f(x: f32, y: f32) -> f32 {
  let r = fmod_f(x, y);
  if (is_zero(r)) { return with_sign(r, y); }
  if (is_nan(r) || is_negative(r) == is_negative(y)) { return r; }
  if (abs_f(y) < 1e-18) { return scale_f(lift_f(r) + lift_f(y), -64); }
  return r + y;
}
fn floordiv_f(x: f32, y: f32) -> f32 {
  if (is_zero(y)) { return div_f(x, y); }
  let small = abs_f(x) < 1e-18 && abs_f(y) < 1e-18;
  let n = select(x, lift_f(x), small);
  let d = select(y, lift_f(y), small);
  let r = fmod_f(n, d);
  if (is_nan(r)) { return r; }
  var q = div_f(n - r, d);
  if (!is_zero(r) && is_negative(r) != is_negative(d)) { q = q - 1.0; }
  if (q == 0.0) { return with_sign(0.0, select(-1.0, 1.0, is_negative(x) == is_negative(y))); }
  let f = floor(q);
  return select(f, f + 1.0, q - f > 0.5);
}
fn half_f(h: u32) -> f32 {
  let s = (h & 0x8000u) << 16u;
  let m = h & 0x7fffu;
  if (m >= 0x7c00u) { return bits_f(s | 0x7f800000u | ((m & 0x3ffu) << 13u)); }
  if (m < 0x400u) { return bitcast<f32>(bitcast<u32>(f32(m) * 5.9604644775390625e-08) | s); }
  return bitcast<f32>(s | ((m << 13u) + 0x38000000u));
}
fn half_bits(x: f32) -> u32 {  // to the nearest, halves to even
  let b = bitcast<u32>(x);
  let s = (b >> 16u) & 0x8000u;
  let a = b & 0x7fffffffu;
  if (a > 0x7f800000u) { return s | 0x7e00u; }
  if (a >= 0x477ff000u) { return s | 0x7c00u; }
  if (a >= 0x38800000u) { return s | ((a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u); }
  if (a < 0x33000000u) { return s; }
  let by = 126u - (a >> 23u);
  let m = (a & 0x007fffffu) | 0x00800000u;
  let half = 1u << (by - 1u);
  return s | ((m + (half - 1u) + ((m >> by) & 1u)) >> by);
}
fn brain_bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  if (is_nan(x)) { return (b >> 16u) | 0x40u; }
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}
fn half_round(x: f32) -> f32 { return half_f(half_bits(x)); }
fn brain_round(x: f32) -> f32 { return bitcast<f32>(brain_bits(x) << 16u); }
fn i32_of_f(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  if (x <= -2147483648.0) { return -2147483647 - 1; }
  return i32(x);
}
fn u32_of_f(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0) { return 0u; }
  if (x >= 4294967296.0) { return 4294967295u; }
  return u32(x);
}
"""
