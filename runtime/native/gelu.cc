// Coefficient tables of quantized GELU.
#include "gelu.h"

namespace bert {

QuantizedGelu::QuantizedGelu(QuantParams output) {
  constexpr double kMaxAbs = 4.5;                            // where the tail t·Φ(-t) is 1.5e-5
  constexpr double kPieceWidth = kMaxAbs / (kPieces - 0.5);  // piece i is centred at t = i · kPieceWidth
  const double scale = output.scale;
  max_abs = static_cast<float>(kMaxAbs / scale * (1 - 1e-6));
  pieces_per_step = static_cast<float>(scale / kPieceWidth);
  for (int piece = 0; piece < kPieces; ++piece) {
    double c[kDegree + 1];
    fit_gelu_tail<kDegree>(piece * kPieceWidth, kPieceWidth / 2, 0, c);
    c[0] += output.zero_point * scale;
    for (int k = 0; k <= kDegree; ++k) coefficients[k][piece] = static_cast<float>(c[k] * std::pow(scale, k - 1));
  }
}

}  // namespace bert
