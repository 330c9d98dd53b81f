// AVX-512 (F, BW, DQ, VL) with VNNI: vectors of 16 float32 or int32 lanes. avx2.h and neon.h define the same
// names for 8 and 4 lanes.
// With BERT_BF16, also bfloat16: AVX512-BF16. With BERT_AMX, also products of tiles: see tiles.h.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bert {

using F32 = __m512;   // 16 × float32
using I32 = __m512i;  // 16 × int32, or 32 × int16, or 64 × int8
using LaneMask = __mmask16;

constexpr int kLanes = 16;
// MR of the GEMM microkernel: a tile of up to 12 rows × 2 vectors takes 24 of the 32 registers as accumulators.
constexpr int kMaxTileRows = 12;
// Weight block size in bytes. All rows of A are multiplied by one block before the next, so the block stays in L2.
constexpr size_t kWeightBlockBytes = 640 * 1024;

// ---- Masks

inline LaneMask first_lanes(ptrdiff_t count) {
  return static_cast<LaneMask>(count >= 16 ? 0xffffU : count <= 0 ? 0U : (1U << count) - 1);
}
// The first `count` lanes whose byte in memory is not 0.
inline LaneMask load_mask(const uint8_t* memory, ptrdiff_t count) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(count), memory);
  return _mm_test_epi8_mask(bytes, bytes);
}
inline F32 select(LaneMask mask, F32 if_true, F32 if_false) { return _mm512_mask_mov_ps(if_false, mask, if_true); }
inline F32 zero_where_equal(F32 x, F32 a, F32 b) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ), x);
}

// ---- Broadcast, load, store

inline F32 set1(float value) { return _mm512_set1_ps(value); }
inline I32 set1(int32_t value) { return _mm512_set1_epi32(value); }
inline I32 zero_i32() { return _mm512_setzero_si512(); }
// Aligned to 64 bytes.
inline F32 load(const float* memory) { return _mm512_load_ps(memory); }
inline F32 load_unaligned(const float* memory) { return _mm512_loadu_ps(memory); }
inline I32 load_i32(const void* memory) { return _mm512_load_si512(memory); }
inline void store(float* memory, F32 x) { _mm512_store_ps(memory, x); }
inline void store_unaligned(float* memory, F32 x) { _mm512_storeu_ps(memory, x); }
inline void store_i32(void* memory, I32 x) { _mm512_store_si512(memory, x); }
// The first `count` lanes, at any address; `load_n` fills the other lanes with 0.
inline F32 load_n(const float* memory, ptrdiff_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), memory); }
inline void store_n(float* memory, F32 x, ptrdiff_t count) { _mm512_mask_storeu_ps(memory, first_lanes(count), x); }

// ---- Arithmetic

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }    // a·b + c
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a·b
// If one argument is NaN, the result is the second argument.
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline I32 add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
inline I32 max(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
inline F32 abs(F32 x) { return _mm512_abs_ps(x); }
inline F32 clamped_abs(F32 x, F32 max_abs) { return _mm512_range_ps(x, max_abs, 0b1010); }  // min(|x|, max_abs)
inline float reduce_sum(F32 x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(F32 x) { return _mm512_reduce_max_ps(x); }
// x · 2ⁿ for integral n ≥ -126
inline F32 ldexp(F32 x, F32 n) { return _mm512_scalef_ps(x, n); }

// ---- Conversions

inline I32 round_to_i32(F32 x) { return _mm512_cvtps_epi32(x); }
inline F32 round(F32 x) { return _mm512_roundscale_ps(x, 0); }
inline F32 to_f32(I32 x) { return _mm512_cvtepi32_ps(x); }
inline I32 bit_cast_i32(F32 x) { return _mm512_castps_si512(x); }
inline F32 bit_cast_f32(I32 x) { return _mm512_castsi512_ps(x); }

// ---- Lookup tables, narrowing, shuffles

// table[index % Size] for each lane.
template <int Size>
inline F32 lookup(const float* table, I32 index) {
  static_assert(Size == 16 || Size == 32);
  if constexpr (Size == 16) return _mm512_permutexvar_ps(index, load(table));
  return _mm512_permutex2var_ps(load(table), index, load(table + 16));
}

// A panel vector of DotS16 from the low halves of int32 lanes: (even[0], odd[0], even[1], odd[1], …).
inline I32 pair_i16(I32 even, I32 odd) { return _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16)); }
// The same from lanes that hold both int16.
inline I32 pair_i16(I32 pairs) { return pairs; }
// int32 → int16, saturating. In the unordered result, a and b alternate every 128 bits.
inline I32 narrow_to_i16_unordered(I32 a, I32 b) { return _mm512_packs_epi32(a, b); }
inline I32 narrow_to_i16(I32 a, I32 b) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), narrow_to_i16_unordered(a, b));
}
#ifdef BERT_AMX
// Splits int16 up to 32639 into signed bytes, high · 256 + low. Of narrow_to_i16_unordered(v0, v1) and (v2, v3), four
// elements of v0, v1, v2 and v3 follow each other, then the next four.
inline void split_i16(I32 a, I32 b, I32& high, I32& low) {
  const I32 half = _mm512_set1_epi16(128);
  high = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                            _mm512_srai_epi16(_mm512_add_epi16(b, half), 8));
  const I32 byte = _mm512_set1_epi16(255);
  low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
}
#endif
// int32 → uint8, saturating: (a, b, c, d) in order.
inline I32 narrow_to_u8(I32 a, I32 b, I32 c, I32 d) {
  const __m512i packed = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  // Each 128-bit block holds 4 bytes of a, of b, of c and of d.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}
// Stores the first `count` bytes, at any address.
inline void store_u8_n(uint8_t* memory, I32 bytes, ptrdiff_t count) {
  _mm512_mask_storeu_epi8(memory, count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1, bytes);
}
// Stores the first `count` bytes of the lower (0) or upper (1) half.
inline void store_u8_half_n(uint8_t* memory, I32 bytes, int half, ptrdiff_t count) {
  const __mmask32 mask = count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
  _mm256_mask_storeu_epi8(memory, mask, half ? _mm512_extracti64x4_epi64(bytes, 1) : _mm512_castsi512_si256(bytes));
}

// Transposes a 16 × 16 matrix of 4-byte elements.
inline void transpose_4_bytes(I32 (&rows)[16]) {
  __m512i pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  // The b-th 128-bit block of quads[4·i + j] holds column 4·b + j of rows 4·i … 4·i + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    rows[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// ---- Dot products: what the GEMM microkernel accumulates in each lane
//
// dot(sum, a, b) adds, in each 4-byte lane, the products of 4 bytes of A by the matching weights of B.
// kStepBytes: bytes of a B panel that one step of the microkernel reads; Input: element type of A.

struct FullVectorPanel {
  static constexpr int kStepBytes = 128;
  static I32 load_b(const uint8_t* panel, int half) { return load_i32(panel + 64 * half); }
};

// 4 × (uint8 · int8) → int32
struct DotU8S8 : FullVectorPanel {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm512_dpbusd_epi32(sum, a, b); }
#ifdef BERT_AMX
  template <int Sums, int A, int B>
  static void multiply_tile() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
#endif
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 4 × (uint8 · int8), for weights from -64 to 64; with VNNI these need no instructions of their own.
using DotU8S7 = DotU8S8;

// 2 × (int16 · int16) → int32
struct DotS16 : FullVectorPanel {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static F32 sum_to_f32(I32 sum) { return to_f32(sum); }
};

// 1 × (float32 · float32) → float32, as the bits of an I32
struct DotF32 : FullVectorPanel {
  using Input = float;
  static I32 dot(I32 sum, I32 a, I32 b) {
    return bit_cast_i32(fma(bit_cast_f32(a), bit_cast_f32(b), bit_cast_f32(sum)));
  }
  static F32 sum_to_f32(I32 sum) { return bit_cast_f32(sum); }
};

#ifdef BERT_BF16
// ---- bfloat16. Subnormal numbers count as 0.

// Elements of a column of a panel that lie together.
constexpr size_t kBf16Group = 2;

// float32 → bfloat16, rounded to nearest even: (low, high) in order.
inline I32 narrow_to_bf16(F32 low, F32 high) { return reinterpret_cast<I32>(_mm512_cvtne2ps_pbh(high, low)); }
// Pairs of bfloat16: (even[0], odd[0], even[1], odd[1], …).
inline I32 interleave_bf16(F32 even, F32 odd) {
  // 32-bit lanes (i, 16 + i)
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i order = _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_or_si512(lanes, set1(16)), 16));
  return _mm512_permutexvar_epi16(order, narrow_to_bf16(even, odd));
}
// The even and the odd elements of pairs.
inline F32 even_bf16(I32 pairs) { return bit_cast_f32(_mm512_slli_epi32(pairs, 16)); }
inline F32 odd_bf16(I32 pairs) { return bit_cast_f32(_mm512_and_si512(pairs, set1(-65536))); }
// Stores rows as bfloat16, those of each lane together.
inline void store_bf16_columns(BFloat16* memory, const F32 (&rows)[kBf16Group]) {
  store_i32(memory, interleave_bf16(rows[0], rows[1]));
}

// 2 × (bfloat16 · bfloat16) → float32, as the bits of an I32
struct DotBF16 : FullVectorPanel {
  using Input = BFloat16;
  static I32 dot(I32 sum, I32 a, I32 b) {
    return bit_cast_i32(
        _mm512_dpbf16_ps(bit_cast_f32(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
  }
#ifdef BERT_AMX
  template <int Sums, int A, int B>
  static void multiply_tile() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
#endif
  static F32 sum_to_f32(I32 sum) { return bit_cast_f32(sum); }
};
#endif

}  // namespace bert
