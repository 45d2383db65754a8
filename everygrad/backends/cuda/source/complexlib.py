"""Complex numbers in CUDA C++: the formulas NumPy's C library uses, branch cuts included."""

from __future__ import annotations

# products are rounded one by one: fused into one another, x * conj(x) would not be real
COMPLEX = """
// Complex
template <class R> struct alignas(2 * sizeof(R)) Complex {
  R re, im;
  Complex() = default;
  __device__ __forceinline__ Complex(R a, R b) : re(a), im(b) {}
};
DEVICE float once(float a, float b) { return __fmul_rn(a, b); }
DEVICE double once(double a, double b) { return __dmul_rn(a, b); }
#define CPLX template <class R> DEVICE Complex<R>
CPLX operator+(Complex<R> a, Complex<R> b) { return {a.re + b.re, a.im + b.im}; }
CPLX operator-(Complex<R> a, Complex<R> b) { return {a.re - b.re, a.im - b.im}; }
CPLX operator-(Complex<R> a) { return {-a.re, -a.im}; }
CPLX operator*(Complex<R> a, Complex<R> b) {
  return {once(a.re, b.re) - once(a.im, b.im), once(a.re, b.im) + once(a.im, b.re)};
}
CPLX operator*(Complex<R> a, R b) { return {a.re * b, a.im * b}; }
CPLX operator/(Complex<R> a, Complex<R> b) {
  if (fabs(b.re) >= fabs(b.im)) {
    if (b.re == (R)0 && b.im == (R)0) return {a.re / fabs(b.re), a.im / fabs(b.re)};
    R q = b.im / b.re, d = b.re + b.im * q;
    return {(a.re + a.im * q) / d, (a.im - a.re * q) / d};
  }
  R q = b.re / b.im, d = b.im + b.re * q;
  return {(a.re * q + a.im) / d, (a.im * q - a.re) / d};
}
template <class R> DEVICE bool operator==(Complex<R> a, Complex<R> b) {
  return a.re == b.re && a.im == b.im;
}
template <class R> DEVICE bool operator!=(Complex<R> a, Complex<R> b) { return !(a == b); }
// c64
typedef Complex<float> c64;
// c128
typedef Complex<double> c128;
// conj_c
CPLX conj_c(Complex<R> z) { return {z.re, -z.im}; }
// i_times
CPLX i_times(Complex<R> z) { return {-z.im, z.re}; }
// i_under
CPLX i_under(Complex<R> z) { return {z.im, -z.re}; }
// abs_c
template <class R> DEVICE R abs_c(Complex<R> z) { return hypot(z.re, z.im); }
// sign_c
CPLX sign_c(Complex<R> z) {
  R size = abs_c(z);
  return size == (R)0 ? z : Complex<R>(z.re / size, z.im / size);
}
// round_c
CPLX round_c(Complex<R> z) { return {rint(z.re), rint(z.im)}; }
// sqrt_c
CPLX sqrt_c(Complex<R> z) {
  if (z.re == (R)0 && z.im == (R)0) return {(R)0, z.im};
  if (is_inf(z.im)) return {fabs(z.im), z.im};
  if (is_inf(z.re)) {
    R rest = z.im != z.im ? z.im : (R)0;
    if (z.re > (R)0) return {z.re, z.im != z.im ? z.im : copysign((R)0, z.im)};
    return {fabs(rest), copysign(-z.re, z.im)};
  }
  R scale = fabs(z.re) > (R)1e30 || fabs(z.im) > (R)1e30 ? (R)0.25 : (R)1;  // hypot overflows
  R a = z.re * scale, b = z.im * scale, back = scale == (R)1 ? (R)1 : (R)2;
  R t = sqrt((fabs(a) + hypot(a, b)) * (R)0.5);
  if (a >= (R)0) return {t * back, b / (t + t) * back};
  return {fabs(b) / (t + t) * back, copysign(t, b) * back};
}
// exp_c
CPLX exp_c(Complex<R> z) {
  R e = exp(z.re);
  if (z.im == (R)0) return {e, z.im};
  return {e * cos(z.im), e * sin(z.im)};
}
// exp2_c
CPLX exp2_c(Complex<R> z) { return exp_c(z * (R)0.69314718055994530942); }
// expm1_c
CPLX expm1_c(Complex<R> z) {
  R s = sin(z.im * (R)0.5);
  return {expm1(z.re) * cos(z.im) - (R)2 * s * s, exp(z.re) * sin(z.im)};
}
// log_c
CPLX log_c(Complex<R> z) {
  R big = fmax(fabs(z.re), fabs(z.im)), small = fmin(fabs(z.re), fabs(z.im)), size;
  if (big > (R)0.5 && big < (R)3) {  // near the unit circle the logarithm is small
    size = (R)0.5 * log1p((big - (R)1) * (big + (R)1) + small * small);
  } else {
    size = log(hypot(z.re, z.im));
  }
  return {size, atan2(z.im, z.re)};
}
// log1p_c
CPLX log1p_c(Complex<R> z) {
  R far = hypot(z.re + (R)1, z.im);
  R size = far > (R)0.5 && far < (R)3 ? (R)0.5 * log1p(z.re * ((R)2 + z.re) + z.im * z.im)
                                      : log(far);
  return {size, atan2(z.im, z.re + (R)1)};
}
// log2_c
CPLX log2_c(Complex<R> z) { return log_c(z) * (R)1.44269504088896340736; }
// log10_c
CPLX log10_c(Complex<R> z) { return log_c(z) * (R)0.43429448190325182765; }
// pow_c
CPLX pow_c(Complex<R> x, Complex<R> y) {
  if (y.re == (R)0 && y.im == (R)0) return {(R)1, (R)0};
  if (x.re == (R)0 && x.im == (R)0) {
    if (y.re > (R)0 && y.im == (R)0) return {(R)0, (R)0};
    R nan = (R)0 / (x.re * (R)0);
    return {nan, nan};
  }
  if (y.im == (R)0 && y.re == floor(y.re) && fabs(y.re) < (R)100) {
    Complex<R> p((R)1, (R)0), s = x;
    for (int n = (int)fabs(y.re); n; n >>= 1, s = s * s) if (n & 1) p = p * s;
    return y.re < (R)0 ? Complex<R>((R)1, (R)0) / p : p;
  }
  return exp_c(y * log_c(x));
}
// sinh_c
CPLX sinh_c(Complex<R> z) { return {sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im)}; }
// cosh_c
CPLX cosh_c(Complex<R> z) { return {cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im)}; }
// tanh_c
CPLX tanh_c(Complex<R> z) {
  if (fabs(z.re) > (R)20) {
    return {copysign((R)1, z.re), (R)4 * sin(z.im) * cos(z.im) * exp((R)-2 * fabs(z.re))};
  }
  R t = tan(z.im), s = sinh(z.re), b = (R)1 + t * t, d = (R)1 + b * s * s;
  return {b * sqrt((R)1 + s * s) * s / d, t / d};
}
// sin_c
CPLX sin_c(Complex<R> z) { return i_under(sinh_c(i_times(z))); }
// cos_c
CPLX cos_c(Complex<R> z) { return cosh_c(i_times(z)); }
// tan_c
CPLX tan_c(Complex<R> z) { return i_under(tanh_c(i_times(z))); }
// asin_c
CPLX asin_c(Complex<R> z) {
  Complex<R> one((R)1, (R)0), a = sqrt_c(one + z), b = sqrt_c(one - z);
  return {atan2(z.re, (a * b).re), asinh((conj_c(b) * a).im)};
}
// acos_c
CPLX acos_c(Complex<R> z) {
  Complex<R> one((R)1, (R)0), a = sqrt_c(one - z), b = sqrt_c(one + z);
  return {(R)2 * atan2(a.re, b.re), asinh((conj_c(b) * a).im)};
}
// acosh_c
CPLX acosh_c(Complex<R> z) {
  Complex<R> one((R)1, (R)0), a = sqrt_c(z - one), b = sqrt_c(z + one);
  return {asinh((conj_c(a) * b).re), (R)2 * atan2(a.im, b.re)};
}
// asinh_c
CPLX asinh_c(Complex<R> z) { return i_under(asin_c(i_times(z))); }
// atanh_c
CPLX atanh_c(Complex<R> z) {
  R d = ((R)1 - z.re) * ((R)1 - z.re) + z.im * z.im;
  R angle = atan2((R)2 * z.im, ((R)1 - z.re) * ((R)1 + z.re) - z.im * z.im);
  return {(R)0.25 * log1p((R)4 * z.re / d), (R)0.5 * angle};
}
// atan_c
CPLX atan_c(Complex<R> z) { return i_under(atanh_c(i_times(z))); }
"""
