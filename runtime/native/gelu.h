// GELU by polynomials: x·Φ(x) = max(x, 0) - t·Φ(-t) with t = |x|.
#pragma once
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace bert {

constexpr float kToInteger = 8388608;  // 2²³: added to a number, leaves the nearest integer in the lowest bits

inline double negative_part(double t) { return t * std::erfc(t / std::sqrt(2.0)) / 2; }  // t·Φ(-t)

// Coefficients of the polynomial nearly closest to -t·Φ(-t) around `middle`, for t - origin: through its values at the
// zeros of Chebyshev's polynomial.
template <int Degree>
void approximate(double middle, double half, double origin, double (&coefficients)[Degree + 1]) {
  constexpr double kPi = 3.14159265358979323846;
  constexpr int count = Degree + 1;
  double x[count], f[count];
  for (int i = 0; i < count; ++i) {
    x[i] = middle - origin + half * std::cos((2 * i + 1) * kPi / (2 * count));
    f[i] = -negative_part(origin + x[i]);
    coefficients[i] = 0;
  }
  for (int order = 1; order < count; ++order)  // divided differences
    for (int i = count - 1; i >= order; --i) f[i] = (f[i] - f[i - 1]) / (x[i] - x[i - order]);
  for (int i = count - 1; i >= 0; --i)  // c·(t - x[i]) + f[i]
    for (int k = count - 1; k >= 0; --k) coefficients[k] = (k ? coefficients[k - 1] : f[i]) - coefficients[k] * x[i];
}

// max(x, 0) - t·Φ(-t) with t = |x|, of which the second is a polynomial in each of a few pieces, within 5e-7, and 0
// beyond them.
struct FloatGelu {
  FloatGelu() {
    for (int piece = 0; piece < kPieces; ++piece) {
      double c[kDegree + 1];
      approximate<kDegree>(piece * kWidth, kWidth / 2, piece * kWidth, c);
      for (int k = 0; k <= kDegree; ++k) tables[k][piece] = static_cast<float>(c[k]);
    }
  }
  F32 operator()(F32 x) const {
    const F32 t = magnitude(x, all(kMost));
    const F32 number = fma(t, all(1 / float(kWidth)), all(kToInteger));
    const F32 r = fnma(number - all(kToInteger), all(float(kWidth)), t);
    F32 rest = lookup<kPieces>(tables[kDegree], bits(number));
#pragma GCC unroll 6
    for (int k = kDegree - 1; k >= 0; --k) rest = fma(rest, r, lookup<kPieces>(tables[k], bits(number)));
    return max(all(0.0f), x) + rest;  // NaN where x is
  }
  static constexpr int kPieces = kLanes == 16 ? 32 : 8, kDegree = kLanes == 16 ? 3 : 6;
  static constexpr double kWidth = kLanes == 16 ? 0.1796875 : 0.75;  // exact in floats; piece i is around i · kWidth
  static constexpr float kMost = 5.6f;                               // t·Φ(-t) is 6e-8 there
  alignas(64) float tables[kDegree + 1][kPieces];
};

// GELU of x, all in steps of the output, plus its zero point.
inline I32 gelu_steps(F32 x, const Gelu& gelu) {
  x = min(x, all(kMoreThanBytes));
  const F32 t = magnitude(x, all(gelu.most));
  const I32 piece = bits(fma(t, all(gelu.pieces_per_step), all(kToInteger)));
  F32 rest = lookup<Gelu::kPieces>(gelu.tables[Gelu::kDegree], piece);
#pragma GCC unroll 3
  for (int k = Gelu::kDegree - 1; k >= 0; --k) rest = fma(rest, t, lookup<Gelu::kPieces>(gelu.tables[k], piece));
  return nearest_ints(max(x, all(0.0f)) + rest);
}

}  // namespace bert
