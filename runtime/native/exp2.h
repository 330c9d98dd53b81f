// Powers of 2, for softmax and SiLU.
#pragma once
#include "simd.h"

namespace bert {

// 2^x for x ≤ 0 or NaN, within a relative error of 2e-7: 2^round(x) times a Taylor polynomial of 2^(x - round(x)).
// Results below 2^-126 become 2^-126.
inline F32 exp2(F32 x) {
  x = max(set1(-126.0F), x);
  const F32 n = round(x), r = x - n;
  F32 p = set1(1.5403530e-4F);  // ln(2)^k / k!
  for (float coefficient : {1.3333558e-3F, 9.6181291e-3F, 5.5504109e-2F, 2.4022651e-1F, 6.9314718e-1F, 1.0F})
    p = fma(p, r, set1(coefficient));
  return ldexp(p, n);
}

}  // namespace bert
