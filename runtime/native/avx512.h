// Sixteen numbers at a time: AVX-512 (F, BW, DQ, VL) with VNNI. `avx2.h` has the same names for eight.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bert {

using F32 = __m512;
using I32 = __m512i;
using Lanes = __mmask16;

constexpr int kLanes = 16;
// A tile of C = A·B is at most 12 rows by a panel of two vectors: 24 accumulators of 32 registers.
constexpr int kRows = 12;
// Bytes of a weight that all rows pass by before the next: they stay in the second-level cache.
constexpr size_t kPartBytes = 640 * 1024;

inline Lanes first_lanes(ptrdiff_t count) {
  return count >= 16 ? Lanes(0xffff) : count <= 0 ? Lanes(0) : Lanes((1u << count) - 1);
}
// Those of the first `count` lanes that are not 0 in memory.
inline Lanes lanes_of(const bool* memory, ptrdiff_t count) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(count), memory);
  return _mm_test_epi8_mask(bytes, bytes);
}
inline F32 select(Lanes lanes, F32 yes, F32 no) { return _mm512_mask_mov_ps(no, lanes, yes); }
inline F32 zero_where_equal(F32 x, F32 a, F32 b) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ), x);
}

inline F32 all(float value) { return _mm512_set1_ps(value); }
inline I32 all(int32_t value) { return _mm512_set1_epi32(value); }
inline I32 no_ints() { return _mm512_setzero_si512(); }
inline F32 load(const float* memory) { return _mm512_load_ps(memory); }
inline I32 load_ints(const void* memory) { return _mm512_load_si512(memory); }
inline void store(void* memory, I32 x) { _mm512_store_si512(memory, x); }
inline void store(float* memory, F32 x) { _mm512_store_ps(memory, x); }
// The first `count` values, wherever they lie; zeros behind them.
inline F32 load(const float* memory, ptrdiff_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), memory); }
inline void store(float* memory, F32 x, ptrdiff_t count) { _mm512_mask_storeu_ps(memory, first_lanes(count), x); }

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }
// Of NaN and a number, the second.
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline I32 max(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
inline F32 magnitude(F32 x) { return _mm512_abs_ps(x); }
inline F32 magnitude(F32 x, F32 most) { return _mm512_range_ps(x, most, 0b1010); }
inline float sum_of(F32 x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(F32 x) { return _mm512_reduce_max_ps(x); }

inline I32 nearest_ints(F32 x) { return _mm512_cvtps_epi32(x); }
inline F32 nearest(F32 x) { return _mm512_roundscale_ps(x, 0); }
inline F32 floats(I32 x) { return _mm512_cvtepi32_ps(x); }
inline I32 bits(F32 x) { return _mm512_castps_si512(x); }
inline F32 of_bits(I32 x) { return _mm512_castsi512_ps(x); }
// x · 2ⁿ, for whole n from -126 on
inline F32 scaled(F32 x, F32 n) { return _mm512_scalef_ps(x, n); }

// Polynomials by pieces: a coefficient for each lane, by the lowest bits of its number.
template <int Pieces>
inline F32 lookup(const float* table, I32 piece) {
  static_assert(Pieces == 16 || Pieces == 32);
  if constexpr (Pieces == 16) return _mm512_permutexvar_ps(piece, load(table));
  return _mm512_permutex2var_ps(load(table), piece, load(table + 16));
}

// The lower halves of `low`, and those of `high` in the upper ones.
inline I32 pairs(I32 low, I32 high) { return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16)); }
// 16-bit integers of both, which take turns, 128 bits of each.
inline I32 to_shorts(I32 a, I32 b) { return _mm512_packs_epi32(a, b); }
inline I32 to_shorts_in_order(I32 a, I32 b) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), to_shorts(a, b));
}
// Of four vectors of integers, saturated to bytes: the first's, the second's, and so on.
inline I32 to_bytes(I32 a, I32 b, I32 c, I32 d) {
  const __m512i packed = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  // Each lane of 128 bits has four of each vector.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}
inline void store_bytes(uint8_t* memory, I32 bytes, ptrdiff_t count) {
  _mm512_mask_storeu_epi8(memory, count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1, bytes);
}
// One half of them.
inline void store_bytes(uint8_t* memory, I32 bytes, int half, ptrdiff_t count) {
  const __mmask32 lanes = count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
  _mm256_mask_storeu_epi8(memory, lanes, half ? _mm512_extracti64x4_epi64(bytes, 1) : _mm512_castsi512_si256(bytes));
}

// Rows become columns, in groups of 4 bytes.
inline void transpose(I32 (&rows)[16]) {
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
  for (int j = 0; j < 4; ++j) {  // quads[4·i + j] has column 4·lane + j of rows 4·i… in each lane of 128 bits
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

// Products to sums; of a panel, `kStep` bytes hold what 4 bytes of each row are multiplied by.
struct WholeVectors {
  static constexpr int kStep = 128;
  static I32 weights(const uint8_t* panel, int half) { return load_ints(panel + 64 * half); }
};

// Four of unsigned by signed bytes.
struct Bytes : WholeVectors {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm512_dpbusd_epi32(sum, a, b); }
  static F32 to_floats(I32 sum) { return floats(sum); }
};

using NarrowBytes = Bytes;

// Two of signed 16-bit integers.
struct Shorts : WholeVectors {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm512_dpwssd_epi32(sum, a, b); }
};

// One of floats.
struct Floats : WholeVectors {
  using Input = float;
  static I32 dot(I32 sum, I32 a, I32 b) { return bits(fma(of_bits(a), of_bits(b), of_bits(sum))); }
  static F32 to_floats(I32 sum) { return of_bits(sum); }
};

}  // namespace bert
