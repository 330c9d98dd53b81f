// AVX2 with FMA, and AVX-VNNI where compiled for it: vectors of 8 float32 or int32 lanes. avx512.h and neon.h
// define the same names for 16 and 4 lanes.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bert {

using F32 = __m256;        // 8 × float32
using I32 = __m256i;       // 8 × int32, or 16 × int16, or 32 × int8
using LaneMask = __m256i;  // all bits of a lane are equal

constexpr int kLanes = 8;
// MR of the GEMM microkernel: a tile of up to 6 rows × 2 vectors takes 12 of the 16 registers as accumulators.
constexpr int kMaxTileRows = 6;
// Weight block size in bytes. All rows of A are multiplied by one block before the next, so the block stays in L2,
// which is 512 KB on Zen 3.
constexpr size_t kWeightBlockBytes = 256 * 1024;

// ---- Masks

inline LaneMask first_lanes(ptrdiff_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
// The first `count` lanes whose byte in memory is not 0.
inline LaneMask load_mask(const uint8_t* memory, ptrdiff_t count) {
  uint64_t bytes = 0;
  if (count > 0) std::memcpy(&bytes, memory, count < 8 ? static_cast<size_t>(count) : 8);
  return _mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes))),
                            _mm256_setzero_si256());
}
inline F32 select(LaneMask mask, F32 if_true, F32 if_false) {
  return _mm256_blendv_ps(if_false, if_true, _mm256_castsi256_ps(mask));
}
inline F32 zero_where_equal(F32 x, F32 a, F32 b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ), x); }

// ---- Broadcast, load, store

inline F32 set1(float value) { return _mm256_set1_ps(value); }
inline I32 set1(int32_t value) { return _mm256_set1_epi32(value); }
inline I32 zero_i32() { return _mm256_setzero_si256(); }
// Aligned to 32 bytes.
inline F32 load(const float* memory) { return _mm256_load_ps(memory); }
inline F32 load_unaligned(const float* memory) { return _mm256_loadu_ps(memory); }
inline I32 load_i32(const void* memory) { return _mm256_load_si256(static_cast<const __m256i*>(memory)); }
inline void store(float* memory, F32 x) { _mm256_store_ps(memory, x); }
inline void store_unaligned(float* memory, F32 x) { _mm256_storeu_ps(memory, x); }
inline void store_i32(void* memory, I32 x) { _mm256_store_si256(static_cast<__m256i*>(memory), x); }
// The first `count` lanes, at any address; `load_n` fills the other lanes with 0. Full vectors avoid masked moves,
// which are slow on AMD's processors.
inline F32 load_n(const float* memory, ptrdiff_t count) {
  return count >= kLanes ? _mm256_loadu_ps(memory) : _mm256_maskload_ps(memory, first_lanes(count));
}
inline void store_n(float* memory, F32 x, ptrdiff_t count) {
  if (count >= kLanes) return _mm256_storeu_ps(memory, x);
  _mm256_maskstore_ps(memory, first_lanes(count), x);
}

// ---- Arithmetic

inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }    // a·b + c
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a·b
// If one argument is NaN, the result is the second argument.
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline I32 add(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
inline I32 max(I32 a, I32 b) { return _mm256_max_epi32(a, b); }
inline F32 abs(F32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }
inline F32 clamped_abs(F32 x, F32 max_abs) { return min(abs(x), max_abs); }  // min(|x|, max_abs)
template <class F>
inline float reduce(F32 x, const F& f) {
  __m128 half = f(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = f(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(f(half, _mm_movehdup_ps(half)));
}
inline float reduce_sum(F32 x) {
  return reduce(x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}
inline float reduce_max(F32 x) {
  return reduce(x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}

// ---- Conversions

inline I32 round_to_i32(F32 x) { return _mm256_cvtps_epi32(x); }
inline F32 round(F32 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F32 to_f32(I32 x) { return _mm256_cvtepi32_ps(x); }
inline I32 bit_cast_i32(F32 x) { return _mm256_castps_si256(x); }
inline F32 bit_cast_f32(I32 x) { return _mm256_castsi256_ps(x); }
// x · 2ⁿ for integral n ≥ -126
inline F32 ldexp(F32 x, F32 n) {
  return _mm256_mul_ps(x, bit_cast_f32(_mm256_slli_epi32(_mm256_add_epi32(round_to_i32(n), set1(127)), 23)));
}

// ---- Lookup tables, narrowing, shuffles

// table[index % Size] for each lane.
template <int Size>
inline F32 lookup(const float* table, I32 index) {
  static_assert(Size == 8);
  return _mm256_permutevar8x32_ps(load(table), index);
}

// A panel vector of DotS16 from the low halves of int32 lanes: (even[0], odd[0], even[1], odd[1], …).
inline I32 pair_i16(I32 even, I32 odd) { return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa); }
// The same from lanes that hold both int16.
inline I32 pair_i16(I32 pairs) { return pairs; }
// int32 → int16, saturating. In the unordered result, a and b alternate every 128 bits.
inline I32 narrow_to_i16_unordered(I32 a, I32 b) { return _mm256_packs_epi32(a, b); }
inline I32 narrow_to_i16(I32 a, I32 b) { return _mm256_permute4x64_epi64(narrow_to_i16_unordered(a, b), 0xd8); }
// int32 → uint8, saturating: (a, b, c, d) in order.
inline I32 narrow_to_u8(I32 a, I32 b, I32 c, I32 d) {
  const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  // Each 128-bit block holds 4 bytes of a, of b, of c and of d.
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
// Stores the first `count` bytes, at any address.
inline void store_u8_n(uint8_t* memory, I32 bytes, ptrdiff_t count) {
  if (count >= 32) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(memory), bytes);
  alignas(32) uint8_t buffer[32];
  store_i32(buffer, bytes);
  std::memcpy(memory, buffer, static_cast<size_t>(count));
}
// Stores the first `count` bytes of the lower (0) or upper (1) half.
inline void store_u8_half_n(uint8_t* memory, I32 bytes, int half, ptrdiff_t count) {
  const __m128i part = half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
  if (count >= 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(memory), part);
  alignas(16) uint8_t buffer[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(buffer), part);
  std::memcpy(memory, buffer, static_cast<size_t>(count));
}

// Transposes an 8 × 8 matrix of 4-byte elements.
inline void transpose_4_bytes(I32 (&rows)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  // The b-th 128-bit block of quads[4·i + j] holds column 4·b + j of rows 4·i … 4·i + 3.
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x20);
    rows[4 + j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x31);
  }
}

// ---- Dot products: what the GEMM microkernel accumulates in each lane
//
// dot(sum, a, b) adds, in each 4-byte lane, the products of 4 bytes of A by the matching weights of B.
// kStepBytes: bytes of a B panel that one step of the microkernel reads; Input: element type of A.

struct FullVectorPanel {
  static constexpr int kStepBytes = 64;
  static I32 load_b(const uint8_t* panel, int half) { return load_i32(panel + 32 * half); }
};

#ifdef __AVXVNNI__

// 2 × (int16 · int16) → int32
struct DotS16 : FullVectorPanel {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 4 × (uint8 · int8) → int32
struct DotU8S8 : FullVectorPanel {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 4 × (uint8 · int8), for weights from -64 to 64; with VNNI these need no instructions of their own.
using DotU8S7 = DotU8S8;

#else

// 2 × (int16 · int16) → int32
struct DotS16 : FullVectorPanel {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 2 × (uint8 · int8) → int32, with both widened to 16 bits: the sum of two uint8 · int8 products may overflow int16, in
// which _mm256_maddubs_epi16 saturates.
struct DotU8S8 {
  using Input = uint16_t;
  static constexpr int kStepBytes = 32;
  static I32 load_b(const uint8_t* panel, int half) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(panel) + half));
  }
  static I32 dot(I32 sum, I32 a, I32 b) { return DotS16::dot(sum, a, b); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 4 × (uint8 · int8) → int32, for weights from -64 to 64: the sum of two such products fits into int16.
struct DotU8S7 : FullVectorPanel {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
  }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

#endif

// 1 × (float32 · float32) → float32, as the bits of an I32
struct DotF32 : FullVectorPanel {
  using Input = float;
  static I32 dot(I32 sum, I32 a, I32 b) {
    return bit_cast_i32(fma(bit_cast_f32(a), bit_cast_f32(b), bit_cast_f32(sum)));
  }
  static F32 sum_to_f32(I32 sum) { return bit_cast_f32(sum); }
};

}  // namespace bert
