"""The error function and the normal distribution's CDF, in WGSL."""

NORMAL_FUNCTIONS = """
fn erf_f(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let a = abs_f(x);
  if (a < 1e-18) {
    let t = lift_f(x);
    return scale_f(t + t * 0.12837916612625122, -64);
  }
  if (a < 0.92) {
    let z = x * x;
    return x + x * (0.12837916612625122 + z * (-0.37612634897232056 + z * (0.11283694207668304
      + z * (-0.02685927040874958 + z * (0.005200634244829416 + z * (-0.0008137437398545444
      + z * 8.345225069206208e-05))))));
  }
  if (a > 4.0) { return with_sign(1.0, x); }
  let q = -0.00016920515918172896 + a * (1.1294883489608765 + a * (0.6334008574485779
    + a * (0.10822038352489471 + a * (-0.025080617517232895 + a * (0.004156255163252354
    + a * (-0.00043139359331689775 + a * 2.0828621927648783e-05))))));
  return with_sign(1.0 - exp_f(-q), x);
}
fn tail_f(t: f32, by: f32, far: bool) -> f32 {  // by * (1 - CDF(t)) for t from 0 to 14.5
  let high = bitcast<f32>(bitcast<u32>(t) & 0xfffff000u);  // its square is exact
  let rest = 0.5 * ((t - high) * (t + high));  // the rest matters: up to 0.11
  let v = div_f(1.0, t + 4.0);
  let ratio = v * (0.39899904 + v * (1.5912571 + v * (6.135257 + v * (17.989859 + v * (94.138466
    + v * (9.831869 + v * (677.7702 + v * (2725.5955 + v * (-15301.603 + v * 16506.52)))))))));
  let less = 1.0 - rest * (1.0 - rest * (0.5 - rest * (0.16666667 - rest * (0.041666668
    - rest * 0.008333334))));
  // far out the tail is subnormal, though `by` times it may not be
  let decay = exp_f(select(0.0, 32.0, far) - 0.5 * (high * high));
  return ((by * ratio) * (less * decay)) * select(1.0, 1.2664165549094176e-14, far);
}
fn ndtr_f(x: f32) -> f32 {  // 1 + erf would lose all digits far below 0
  if (is_nan(x)) { return x; }
  let t = abs_f(x);
  let tail = select(tail_f(min(t, 14.5), 1.0, t > 5.0), 0.0, t > 14.5);
  return select(tail, 1.0 - tail, x > 0.0);
}
fn gelu_f(x: f32) -> f32 {  // x * ndtr_f(x), also where ndtr_f(x) is subnormal
  if (x < -5.0 && x >= -14.5) { return tail_f(-x, x, true); }
  return x * ndtr_f(x);
}
"""
