// Powers of 2, for softmax and SiLU.
#pragma once
#include <initializer_list>

#include "simd.h"

namespace bert {

// 2^x for x ≤ 0 or NaN, within a relative error of 2.5e-7: 2^round(x) times a Taylor polynomial of 2^(x - round(x)).
// Results below 2^-126 become 2^-126.
inline F32 exp2(F32 x) {
  x = max(set1(-126.0F), x);
  const F32 n = round(x), r = x - n;
  F32 p = set1(1.5403530e-4F);  // ln(2)^k / k!
  for (float coefficient : {1.3333558e-3F, 9.6181291e-3F, 5.5504109e-2F, 2.4022651e-1F, 6.9314718e-1F, 1.0F})
    p = fma(p, r, set1(coefficient));
  return ldexp(p, n);
}

#ifdef BERT_AMX
// 2^x for x ≤ 0 or NaN, within a relative error of 8e-5; that of a bfloat16 is 4e-3. Results below 2^-126 become
// subnormal, which counts as 0 in bfloat16.
inline F32 exp2_for_bf16(F32 x) {
  const F32 shift = set1(12582912.0F);  // 1.5 · 2²³: a sum with it is rounded to an integer
  x = max(set1(-126.0F), x);
  const F32 n = x + shift - shift, r = x - n;
  F32 p = set1(0.05517167F);
  for (float coefficient : {0.24261113F, 0.69326097F, 0.99992806F}) p = fma(p, r, set1(coefficient));
  return ldexp(p, n);
}
#endif

constexpr float kExponentUnit = 8388608;  // 2²³: the lowest exponent bit of a float32, as an integer

// 2^x within a relative error of 6e-6, for an argument that is already scaled like the bits of a float32:
// (x + 127) · kExponentUnit. 0 for x below the smallest exponent and for NaN.
inline F32 exp2_scaled(F32 scaled) {
  const I32 bits = max(round_to_i32(scaled), zero_i32());
  const F32 m = bit_cast_f32((bits & set1(0x007fffff)) | set1(0x3f800000));  // 1 + fraction of x
  F32 p = set1(0.0135341678F);                                               // polynomial of 2^(m - 1)
  for (float coefficient : {-0.00212521059F, 0.166613385F, 0.31201604F, 0.509964228F}) p = fma(p, m, set1(coefficient));
  return p * bit_cast_f32(bits & set1(0x7f800000));
}

}  // namespace bert
