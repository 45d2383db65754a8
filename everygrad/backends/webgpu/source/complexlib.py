"""Complex numbers in WGSL: pairs of float32 as the two words they are in memory, by the formulas of
NumPy's C library, branch cuts included."""

from __future__ import annotations

# products are rounded one by one (`once_f`): fused into a sum, x * conj(x) would not be real
COMPLEX_FUNCTIONS = """
fn c_of(re: f32, im: f32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(re), bitcast<u32>(im)); }
fn re_c(z: vec2<u32>) -> f32 { return bits_f(z.x); }
fn im_c(z: vec2<u32>) -> f32 { return bits_f(z.y); }
fn once_f(a: f32, b: f32) -> f32 {  // a product that no driver contracts
  let p = a * b;
  return select(p, nan_f(), is_nan(p));
}
fn hypot_f(x: f32, y: f32) -> f32 {
  let a = abs_f(x);
  let b = abs_f(y);
  if (is_inf(a) || is_inf(b)) { return inf_f(); }
  let big = max_f(a, b);
  if (is_zero(big) || is_nan(big)) { return big; }
  let e = clamp(i32(bitcast<u32>(big) >> 23u) - 127, -100, 100);
  let p = a * pow2_f(-e);
  let q = b * pow2_f(-e);
  return sqrt_f(p * p + q * q) * pow2_f(e);
}
fn add_c(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return c_of(re_c(a) + re_c(b), im_c(a) + im_c(b));
}
fn sub_c(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return c_of(re_c(a) + neg_f(re_c(b)), im_c(a) + neg_f(im_c(b)));
}
fn mul_c(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = re_c(a);
  let q = im_c(a);
  let r = re_c(b);
  let s = im_c(b);
  return c_of(once_f(p, r) + neg_f(once_f(q, s)), once_f(p, s) + once_f(q, r));
}
fn scaled_c(z: vec2<u32>, f: f32) -> vec2<u32> { return c_of(re_c(z) * f, im_c(z) * f); }
fn over_c(z: vec2<u32>, f: f32) -> vec2<u32> { return c_of(div_f(re_c(z), f), div_f(im_c(z), f)); }
fn plus_zero_c(z: vec2<u32>) -> vec2<u32> {
  return c_of(plus_zero_f(re_c(z)), plus_zero_f(im_c(z)));
}
fn bound_c(z: vec2<u32>) -> u32 { return max(z.x & 0x7fffffffu, z.y & 0x7fffffffu); }
fn lift_c(z: vec2<u32>) -> vec2<u32> { return c_of(lift_f(re_c(z)), lift_f(im_c(z))); }
fn div_c(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  // below 2^-63, where what is added to the denominator may be flushed: both times 2^64
  if (bound_c(b) - 1u >= 0x1fffffffu) { return ratio_c(a, b); }
  if (bound_c(a) < 0x20000000u) { return ratio_c(lift_c(a), lift_c(b)); }
  return scaled_c(ratio_c(a, lift_c(b)), 18446744073709551616.0);
}
fn ratio_c(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = re_c(a);
  let q = im_c(a);
  let r = re_c(b);
  let s = im_c(b);
  if (abs_f(r) >= abs_f(s)) {
    if (is_zero(r) && is_zero(s)) { return c_of(div_f(p, abs_f(r)), div_f(q, abs_f(r))); }
    let f = div_f(s, r);
    let d = r + once_f(s, f);
    return c_of(div_f(p + once_f(q, f), d), div_f(q + neg_f(once_f(p, f)), d));
  }
  let f = div_f(r, s);
  let d = s + once_f(r, f);
  return c_of(div_f(once_f(p, f) + q, d), div_f(once_f(q, f) + neg_f(p), d));
}
fn neg_c(z: vec2<u32>) -> vec2<u32> { return z ^ vec2<u32>(0x80000000u, 0x80000000u); }
fn conj_c(z: vec2<u32>) -> vec2<u32> { return vec2<u32>(z.x, z.y ^ 0x80000000u); }
fn i_times(z: vec2<u32>) -> vec2<u32> { return vec2<u32>(z.y ^ 0x80000000u, z.x); }
fn i_under(z: vec2<u32>) -> vec2<u32> { return vec2<u32>(z.y, z.x ^ 0x80000000u); }
fn eq_c(a: vec2<u32>, b: vec2<u32>) -> bool {
  return eq_f(re_c(a), re_c(b)) && eq_f(im_c(a), im_c(b));
}
fn is_zero_c(z: vec2<u32>) -> bool { return ((z.x | z.y) & 0x7fffffffu) == 0u; }
fn abs_c(z: vec2<u32>) -> f32 { return hypot_f(re_c(z), im_c(z)); }
fn angle_c(z: vec2<u32>) -> f32 { return atan2_f(im_c(z), re_c(z)); }
fn sign_c(z: vec2<u32>) -> vec2<u32> {
  let size = abs_c(z);
  if (is_zero(size)) { return z; }
  return over_c(z, size);
}
fn round_c(z: vec2<u32>) -> vec2<u32> { return c_of(round_f(re_c(z)), round_f(im_c(z))); }
fn sqrt_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  if (is_zero_c(z)) { return c_of(0.0, y); }
  if (is_inf(y)) { return c_of(abs_f(y), y); }
  if (is_inf(x)) {
    if (!is_negative(x)) { return c_of(x, select(with_sign(0.0, y), y, is_nan(y))); }
    return c_of(select(0.0, abs_f(y), is_nan(y)), with_sign(neg_f(x), y));
  }
  // scaled so that neither the sum overflows nor a small one loses digits
  let big = max_f(abs_f(x), abs_f(y));
  var e = 0;
  if (!is_nan(big)) { e = clamp(i32(bitcast<u32>(big) >> 23u) - 127, -100, 100) / 2; }
  let a = x * pow2_f(-2 * e);
  let b = y * pow2_f(-2 * e);
  let back = pow2_f(e);
  let t = sqrt_f((abs_f(a) + hypot_f(a, b)) * 0.5);
  let rest = div_f(b, t + t);
  if (!is_negative(a)) { return c_of(t * back, rest * back); }
  return c_of(abs_f(rest) * back, with_sign(t, b) * back);
}
fn exp_c(z: vec2<u32>) -> vec2<u32> {
  let e = exp_f(re_c(z));
  let y = im_c(z);
  if (is_zero(y)) { return c_of(e, y); }
  return c_of(e * cos_f(y), e * sin_f(y));
}
fn exp2_c(z: vec2<u32>) -> vec2<u32> { return exp_c(scaled_c(z, 0.6931471805599453)); }
fn expm1_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  let s = sin_f(y * 0.5);
  return c_of(expm1_f(x) * cos_f(y) - 2.0 * s * s, exp_f(x) * sin_f(y));
}
fn log_c(z: vec2<u32>) -> vec2<u32> {
  let a = abs_f(re_c(z));
  let b = abs_f(im_c(z));
  let big = max_f(a, b);
  let small = min_f(a, b);
  var size = log_f(hypot_f(a, b));
  if (big > 0.5 && big < 3.0) {  // near the unit circle the logarithm is small
    size = 0.5 * log1p_f((big - 1.0) * (big + 1.0) + small * small);
  }
  return c_of(size, angle_c(z));
}
fn log1p_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  let far = hypot_f(x + 1.0, y);
  var size = log_f(far);
  if (far > 0.5 && far < 3.0) { size = 0.5 * log1p_f(x * (2.0 + x) + y * y); }
  return c_of(size, atan2_f(y, x + 1.0));
}
fn log2_c(z: vec2<u32>) -> vec2<u32> { return scaled_c(log_c(z), 1.4426950408889634); }
fn log10_c(z: vec2<u32>) -> vec2<u32> { return scaled_c(log_c(z), 0.4342944819032518); }
fn pow_c(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let r = re_c(y);
  let whole = is_zero(im_c(y));
  if (is_zero_c(y)) { return c_of(1.0, 0.0); }
  if (is_zero_c(x)) {
    if (r > 0.0 && whole) { return c_of(0.0, 0.0); }
    return c_of(nan_f(), nan_f());
  }
  if (whole && r == floor_f(r) && abs_f(r) < 100.0) {
    var p = c_of(1.0, 0.0);
    var s = x;
    for (var n = u32(abs_f(r)); n > 0u; n = n >> 1u) {
      if ((n & 1u) == 1u) { p = mul_c(p, s); }
      s = mul_c(s, s);
    }
    if (r < 0.0) { return div_c(c_of(1.0, 0.0), p); }
    return p;
  }
  return exp_c(mul_c(y, log_c(x)));
}
fn sinh_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  return c_of(sinh_f(x) * cos_f(y), cosh_f(x) * sin_f(y));
}
fn cosh_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  return c_of(cosh_f(x) * cos_f(y), sinh_f(x) * sin_f(y));
}
fn tanh_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  if (abs_f(x) > 20.0) {
    return c_of(with_sign(1.0, x), 4.0 * sin_f(y) * cos_f(y) * exp_f(-2.0 * abs_f(x)));
  }
  let t = tan_f(y);
  let s = sinh_f(x);
  let b = 1.0 + t * t;
  let d = 1.0 + b * s * s;
  return c_of(div_f(b * sqrt_f(1.0 + s * s) * s, d), div_f(t, d));
}
fn sin_c(z: vec2<u32>) -> vec2<u32> { return i_under(sinh_c(i_times(z))); }
fn cos_c(z: vec2<u32>) -> vec2<u32> { return cosh_c(i_times(z)); }
fn tan_c(z: vec2<u32>) -> vec2<u32> { return i_under(tanh_c(i_times(z))); }
fn asin_c(z: vec2<u32>) -> vec2<u32> {
  let one = c_of(1.0, 0.0);
  let a = sqrt_c(add_c(one, z));
  let b = sqrt_c(sub_c(one, z));
  return c_of(atan2_f(re_c(z), re_c(mul_c(a, b))), asinh_f(im_c(mul_c(conj_c(b), a))));
}
fn acos_c(z: vec2<u32>) -> vec2<u32> {
  let one = c_of(1.0, 0.0);
  let a = sqrt_c(sub_c(one, z));
  let b = sqrt_c(add_c(one, z));
  return c_of(2.0 * atan2_f(re_c(a), re_c(b)), asinh_f(im_c(mul_c(conj_c(b), a))));
}
fn acosh_c(z: vec2<u32>) -> vec2<u32> {
  let one = c_of(1.0, 0.0);
  let a = sqrt_c(sub_c(z, one));
  let b = sqrt_c(add_c(z, one));
  return c_of(asinh_f(re_c(mul_c(conj_c(a), b))), 2.0 * atan2_f(im_c(a), re_c(b)));
}
fn asinh_c(z: vec2<u32>) -> vec2<u32> { return i_under(asin_c(i_times(z))); }
fn atanh_c(z: vec2<u32>) -> vec2<u32> {
  let x = re_c(z);
  let y = im_c(z);
  let a = abs_f(x);  // the function is odd: beside -1 the logarithm's argument would be near 0
  let d = (1.0 - a) * (1.0 - a) + y * y;
  let turn = atan2_f(2.0 * y, (1.0 - x) * (1.0 + x) - y * y);
  return c_of(with_sign(0.25 * log1p_f(div_f(4.0 * a, d)), x), 0.5 * turn);
}
fn atan_c(z: vec2<u32>) -> vec2<u32> { return i_under(atanh_c(i_times(z))); }
"""
