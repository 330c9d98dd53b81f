#include "gelu.h"

namespace bert {

Gelu::Gelu(Range output) {
  constexpr double kMost = 4.5;  // where t·Φ(-t) is 1.5e-5
  constexpr double kWidth = kMost / (kPieces - 0.5);  // piece i is around i · kWidth
  const double step = output.scale;
  most = static_cast<float>(kMost / step * (1 - 1e-6));
  pieces_per_step = static_cast<float>(step / kWidth);
  for (int piece = 0; piece < kPieces; ++piece) {
    double c[kDegree + 1];
    approximate<kDegree>(piece * kWidth, kWidth / 2, 0, c);
    c[0] += output.zero_point * step;
    for (int k = 0; k <= kDegree; ++k) tables[k][piece] = static_cast<float>(c[k] * std::pow(step, k - 1));
  }
}

}  // namespace bert
