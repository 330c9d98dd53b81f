// SiLU(x) = x · sigmoid(x), as max(x, 0) - t · e / (1 + e) with t = |x| and e = exp(-t).
#pragma once
#include "exp2.h"
#include "simd.h"

namespace bert {

// float32 SiLU, within 1e-6.
struct FloatSilu {
  F32 operator()(F32 x) const {
    const F32 t = clamped_abs(x, set1(87.0F));             // beyond, exp(-t) is below the least normal number
    const F32 e = exp2(t * set1(-1.44269504F));            // -log2 e
    return max(set1(0.0F), x) - t * e / (set1(1.0F) + e);  // in this order max keeps a NaN of x
  }
};

}  // namespace bert
