// GELU by piecewise polynomials.
//
// With t = |x| and Φ the normal distribution function, GELU(x) = x·Φ(x) = max(x, 0) - t·Φ(-t). The tail t·Φ(-t) is
// even, bounded, and 0 for large t, so a polynomial of low degree in each of a few equal pieces of t is enough; its
// coefficients are looked up by lane permutation.
#pragma once
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace bert {

// 2²³: a float32 of this size has no fraction bits, so x + 2²³ holds round(x) in its lowest bits.
constexpr float kRoundingShift = 8388608;

inline double gelu_tail(double t) { return t * std::erfc(t / std::sqrt(2.0)) / 2; }  // t·Φ(-t)

// Fits a polynomial in t - origin to -gelu_tail(t) on [middle - half, middle + half]: interpolates at Chebyshev nodes
// (by Newton's divided differences), which is nearly the minimax polynomial. coefficients[k] belongs to (t - origin)ᵏ.
template <int Degree>
void fit_gelu_tail(double middle, double half, double origin, double (&coefficients)[Degree + 1]) {
  constexpr double kPi = 3.14159265358979323846;
  constexpr int count = Degree + 1;
  double x[count], f[count];
  for (int i = 0; i < count; ++i) {
    x[i] = middle - origin + half * std::cos((2 * i + 1) * kPi / (2 * count));
    f[i] = -gelu_tail(origin + x[i]);
    coefficients[i] = 0;
  }
  for (int order = 1; order < count; ++order)  // divided differences
    for (int i = count - 1; i >= order; --i) f[i] = (f[i] - f[i - 1]) / (x[i] - x[i - order]);
  for (int i = count - 1; i >= 0; --i)  // Newton form to monomials: c · (t - x[i]) + f[i]
    for (int k = count - 1; k >= 0; --k) coefficients[k] = (k ? coefficients[k - 1] : f[i]) - coefficients[k] * x[i];
}

// float32 GELU, within 1e-6: the polynomials are within 5e-7 of the tail. Piece i is centred at t = i · kPieceWidth.
struct FloatGelu {
  FloatGelu() {
    for (int piece = 0; piece < kPieces; ++piece) {
      const double middle = piece * double{kPieceWidth};
      double c[kDegree + 1];
      fit_gelu_tail<kDegree>(middle, double{kPieceWidth} / 2, middle, c);
      for (int k = 0; k <= kDegree; ++k) coefficients[k][piece] = static_cast<float>(c[k]);
    }
  }
  F32 operator()(F32 x) const {
    const F32 t = clamped_abs(x, set1(kMaxAbs));
    const F32 shifted = fma(t, set1(1 / kPieceWidth), set1(kRoundingShift));
    const I32 piece = bit_cast_i32(shifted);
    const F32 r = fnma(shifted - set1(kRoundingShift), set1(kPieceWidth), t);
    F32 tail = lookup<kPieces>(coefficients[kDegree], piece);
#pragma GCC unroll 6
    for (int k = kDegree - 1; k >= 0; --k) tail = fma(tail, r, lookup<kPieces>(coefficients[k], piece));
    return max(set1(0.0F), x) + tail;  // in this order max keeps a NaN of x
  }
  static constexpr int kPieces = kLanes == 16 ? 32 : 8, kDegree = kLanes == 16 ? 3 : 6;
  static constexpr float kPieceWidth = kLanes == 16 ? 0.1796875F : 0.75F;
  static constexpr float kMaxAbs = 5.6F;  // where the tail is 6e-8
  alignas(64) float coefficients[kDegree + 1][kPieces];
};

// GELU followed by uint8 quantization: round(GELU(x) / scale + zero_point), within 1e-4 / scale before rounding. x is
// in quantization steps (multiples of the output's scale); the tables contain the zero point. The result is not
// saturated.
inline I32 quantized_gelu(F32 x, const QuantizedGelu& gelu) {
  x = min(x, set1(kClampBeforeU8));
  const F32 t = clamped_abs(x, set1(gelu.max_abs));
  const I32 piece = bit_cast_i32(fma(t, set1(gelu.pieces_per_step), set1(kRoundingShift)));
  F32 tail = lookup<QuantizedGelu::kPieces>(gelu.coefficients[QuantizedGelu::kDegree], piece);
#pragma GCC unroll 3
  for (int k = QuantizedGelu::kDegree - 1; k >= 0; --k)
    tail = fma(tail, t, lookup<QuantizedGelu::kPieces>(gelu.coefficients[k], piece));
  return round_to_i32(max(x, set1(0.0F)) + tail);
}

}  // namespace bert
