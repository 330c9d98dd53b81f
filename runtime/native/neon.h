// NEON (arm64), with dot products or matrix products of int8 and, with BERT_BF16, bfloat16 where compiled for them:
// vectors of 4 float32 or int32 lanes.
// avx2.h and avx512.h define the same names for 8 and 16 lanes.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bert {

using F32 = float32x4_t;      // 4 × float32
using I32 = int32x4_t;        // 4 × int32, or 8 × int16, or 16 × int8
using LaneMask = uint32x4_t;  // all bits of a lane are equal

constexpr int kLanes = 4;
// MR of the GEMM microkernel: a tile of up to 8 rows × 2 vectors takes 16 of the 32 registers as accumulators, and 8
// for the rows of A.
constexpr int kMaxTileRows = 8;
// Weight block size in bytes. All rows of A are multiplied by one block before the next, so the block stays in L2,
// which is 512 KB or more for each core of a server processor.
constexpr size_t kWeightBlockBytes = 256 * 1024;

// ---- Masks

inline LaneMask first_lanes(ptrdiff_t count) {
  const int32x4_t lanes = {0, 1, 2, 3};
  return vcgtq_s32(vdupq_n_s32(static_cast<int32_t>(count)), lanes);
}
// The first `count` lanes whose byte in memory is not 0.
inline LaneMask load_mask(const uint8_t* memory, ptrdiff_t count) {
  uint32_t bytes = 0;
  if (count > 0) std::memcpy(&bytes, memory, count < 4 ? static_cast<size_t>(count) : 4);
  const uint32x4_t lanes = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
  return vtstq_u32(lanes, lanes);
}
inline F32 select(LaneMask mask, F32 if_true, F32 if_false) { return vbslq_f32(mask, if_true, if_false); }
inline F32 zero_where_equal(F32 x, F32 a, F32 b) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqq_f32(a, b)));
}

// ---- Broadcast, load, store

inline F32 set1(float value) { return vdupq_n_f32(value); }
inline I32 set1(int32_t value) { return vdupq_n_s32(value); }
inline I32 zero_i32() { return vdupq_n_s32(0); }
inline F32 load(const float* memory) { return vld1q_f32(memory); }
inline F32 load_unaligned(const float* memory) { return vld1q_f32(memory); }
inline I32 load_i32(const void* memory) { return vld1q_s32(static_cast<const int32_t*>(memory)); }
inline void store(float* memory, F32 x) { vst1q_f32(memory, x); }
inline void store_unaligned(float* memory, F32 x) { vst1q_f32(memory, x); }
inline void store_i32(void* memory, I32 x) { vst1q_s32(static_cast<int32_t*>(memory), x); }
// The first `count` lanes, at any address; `load_n` fills the other lanes with 0.
inline F32 load_n(const float* memory, ptrdiff_t count) {
  if (count >= kLanes) return vld1q_f32(memory);
  F32 x = vdupq_n_f32(0);
  if (count > 0) x = vld1q_lane_f32(memory, x, 0);
  if (count > 1) x = vld1q_lane_f32(memory + 1, x, 1);
  if (count > 2) x = vld1q_lane_f32(memory + 2, x, 2);
  return x;
}
inline void store_n(float* memory, F32 x, ptrdiff_t count) {
  if (count >= kLanes) return vst1q_f32(memory, x);
  if (count > 0) vst1q_lane_f32(memory, x, 0);
  if (count > 1) vst1q_lane_f32(memory + 1, x, 1);
  if (count > 2) vst1q_lane_f32(memory + 2, x, 2);
}

// ---- Arithmetic

inline F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }   // a·b + c
inline F32 fnma(F32 a, F32 b, F32 c) { return vfmsq_f32(c, a, b); }  // c - a·b
// If one argument is NaN, the result is the second argument.
inline F32 max(F32 a, F32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F32 min(F32 a, F32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline I32 add(I32 a, I32 b) { return vaddq_s32(a, b); }
inline I32 max(I32 a, I32 b) { return vmaxq_s32(a, b); }
inline F32 abs(F32 x) { return vabsq_f32(x); }
inline F32 clamped_abs(F32 x, F32 max_abs) { return min(abs(x), max_abs); }  // min(|x|, max_abs)
inline float reduce_sum(F32 x) { return vaddvq_f32(x); }
inline float reduce_max(F32 x) { return vmaxvq_f32(x); }

// ---- Conversions

inline I32 round_to_i32(F32 x) { return vcvtnq_s32_f32(x); }
inline F32 round(F32 x) { return vrndnq_f32(x); }
inline F32 to_f32(I32 x) { return vcvtq_f32_s32(x); }
inline I32 bit_cast_i32(F32 x) { return vreinterpretq_s32_f32(x); }
inline F32 bit_cast_f32(I32 x) { return vreinterpretq_f32_s32(x); }
// x · 2ⁿ for integral n ≥ -126
inline F32 ldexp(F32 x, F32 n) {
  return vmulq_f32(x, bit_cast_f32(vshlq_n_s32(vaddq_s32(round_to_i32(n), set1(127)), 23)));
}

// ---- Lookup tables, narrowing, shuffles

// table[index % Size] for each lane.
template <int Size>
inline F32 lookup(const float* table, I32 index) {
  static_assert(Size == 8);
  const auto* bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x2_t entries = {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
  // Bytes 4·i, 4·i + 1, 4·i + 2 and 4·i + 3 of entry i.
  const I32 places = vmlaq_s32(set1(0x03020100), vandq_s32(index, set1(7)), set1(0x04040404));
  return vreinterpretq_f32_u8(vqtbl2q_u8(entries, vreinterpretq_u8_s32(places)));
}

// A panel vector of DotS16 from the low halves of int32 lanes, two int16 of each column. Here those of `even` stand
// before those of `odd`, since the instructions multiply four columns by one number.
inline I32 pair_i16(I32 even, I32 odd) {
  return vreinterpretq_s32_s16(vuzp1q_s16(vreinterpretq_s16_s32(even), vreinterpretq_s16_s32(odd)));
}
// The same from lanes that hold both int16.
inline I32 pair_i16(I32 pairs) { return pair_i16(pairs, vshrq_n_s32(pairs, 16)); }
// int32 → int16, saturating.
inline I32 narrow_to_i16(I32 a, I32 b) { return vreinterpretq_s32_s16(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))); }
inline I32 narrow_to_i16_unordered(I32 a, I32 b) { return narrow_to_i16(a, b); }
// int32 → uint8, saturating: (a, b, c, d) in order.
inline I32 narrow_to_u8(I32 a, I32 b, I32 c, I32 d) {
  const uint8x8_t low = vqmovun_s16(vreinterpretq_s16_s32(narrow_to_i16(a, b)));
  const uint8x8_t high = vqmovun_s16(vreinterpretq_s16_s32(narrow_to_i16(c, d)));
  return vreinterpretq_s32_u8(vcombine_u8(low, high));
}
// Stores the first `count` bytes, at any address.
inline void store_u8_n(uint8_t* memory, I32 bytes, ptrdiff_t count) {
  if (count >= 16) return vst1q_u8(memory, vreinterpretq_u8_s32(bytes));
  uint8_t buffer[16];
  vst1q_u8(buffer, vreinterpretq_u8_s32(bytes));
  std::memcpy(memory, buffer, static_cast<size_t>(count));
}
// Stores the first `count` bytes of the lower (0) or upper (1) half.
inline void store_u8_half_n(uint8_t* memory, I32 bytes, int half, ptrdiff_t count) {
  const uint8x16_t all = vreinterpretq_u8_s32(bytes);
  const uint8x8_t part = half ? vget_high_u8(all) : vget_low_u8(all);
  if (count >= 8) return vst1_u8(memory, part);
  uint8_t buffer[8];
  vst1_u8(buffer, part);
  std::memcpy(memory, buffer, static_cast<size_t>(count));
}

// Transposes a 4 × 4 matrix of 4-byte elements.
inline void transpose_4_bytes(I32 (&rows)[4]) {
  const int32x4x2_t upper = vtrnq_s32(rows[0], rows[1]), lower = vtrnq_s32(rows[2], rows[3]);
  for (int i = 0; i < 2; ++i) {
    rows[i] = vcombine_s32(vget_low_s32(upper.val[i]), vget_low_s32(lower.val[i]));
    rows[i + 2] = vcombine_s32(vget_high_s32(upper.val[i]), vget_high_s32(lower.val[i]));
  }
}

// ---- Dot products: what the GEMM microkernel accumulates in each lane
//
// dot<Step>(sum, a, b) adds, in each 4-byte lane, the products of 4 bytes of A, the Step-th of 16, by the matching
// weights of B. kStepBytes: bytes of a B panel that one step of the microkernel reads; Input: element type of A.

struct FullVectorPanel {
  static constexpr int kStepBytes = 32;
  static I32 load_b(const uint8_t* panel, int half) { return load_i32(panel + 16 * half); }
};

// Base of those that neon_microkernel.h multiplies by matrix products instead: multiply(sums, a, b) adds the products
// of two rows by two columns, 8 bytes of each, and add(a, b) adds sums.
struct MatrixProductPanel : FullVectorPanel {};

// 2 × (int16 · int16) → int32. B: see pair_i16.
struct DotS16 : FullVectorPanel {
  template <int Step>
  static I32 dot(I32 sum, I32 a, I32 b) {
    const int16x8_t elements = vreinterpretq_s16_s32(a), columns = vreinterpretq_s16_s32(b);
    sum = vmlal_laneq_s16(sum, vget_low_s16(columns), elements, 2 * Step);
    return vmlal_high_laneq_s16(sum, columns, elements, 2 * Step + 1);
  }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

// (uint8 · int8) → int32
struct DotU8S8 : MatrixProductPanel {
  using Input = uint8_t;
  static I32 multiply(I32 sums, I32 a, I32 b) {
    return vusmmlaq_s32(sums, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
  }
  static I32 add(I32 a, I32 b) { return vaddq_s32(a, b); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

#elif defined(__ARM_FEATURE_DOTPROD)

// 4 × (int8 · int8) → int32. The instruction takes both signed, so 128 is subtracted from A: Input has been shifted.
struct DotU8S8 : FullVectorPanel {
  using Input = int8_t;
  template <int Step>
  static I32 dot(I32 sum, I32 a, I32 b) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_s32(b), vreinterpretq_s8_s32(a), Step);
  }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

#else

// 2 × (uint8 · int8) → int32, with both widened to 16 bits.
struct DotU8S8 {
  using Input = uint16_t;
  static constexpr int kStepBytes = 16;
  static I32 load_b(const uint8_t* panel, int half) {
    return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(panel) + 8 * half)));
  }
  template <int Step>
  static I32 dot(I32 sum, I32 a, I32 b) {
    return DotS16::dot<Step>(sum, a, b);
  }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

#endif

// 4 × (uint8 · int8), for weights from -64 to 64: nothing here saturates, so these need no instructions of their own.
using DotU8S7 = DotU8S8;

// 1 × (float32 · float32) → float32, as the bits of an I32
struct DotF32 : FullVectorPanel {
  using Input = float;
  template <int Step>
  static I32 dot(I32 sum, I32 a, I32 b) {
    return bit_cast_i32(vfmaq_laneq_f32(bit_cast_f32(sum), bit_cast_f32(b), bit_cast_f32(a), Step));
  }
  static F32 sum_to_f32(I32 sum) { return bit_cast_f32(sum); }
};

#ifdef BERT_BF16
// ---- bfloat16. Products count subnormal numbers as 0.

// Elements of a column of a panel that lie together.
constexpr size_t kBf16Group = 4;

// float32 → bfloat16, rounded to nearest even: (low, high) in order.
inline I32 narrow_to_bf16(F32 low, F32 high) {
  return vreinterpretq_s32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}
// Stores rows as bfloat16, those of each lane together: rows[0][0], rows[1][0], …, rows[0][1], …
inline void store_bf16_columns(BFloat16* memory, const F32 (&rows)[kBf16Group]) {
  uint16x4x4_t narrow;
  for (size_t i = 0; i < kBf16Group; ++i) narrow.val[i] = vreinterpret_u16_bf16(vcvt_bf16_f32(rows[i]));
  vst4_u16(reinterpret_cast<uint16_t*>(memory), narrow);
}

// (bfloat16 · bfloat16) → float32, as the bits of an I32
struct DotBF16 : MatrixProductPanel {
  using Input = BFloat16;
  static I32 multiply(I32 sums, I32 a, I32 b) {
    return bit_cast_i32(vbfmmlaq_f32(bit_cast_f32(sums), vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b)));
  }
  static I32 add(I32 a, I32 b) { return bit_cast_i32(bit_cast_f32(a) + bit_cast_f32(b)); }
  static F32 sum_to_f32(I32 sum) { return bit_cast_f32(sum); }
};
#endif

}  // namespace bert
