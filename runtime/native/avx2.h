// Eight numbers at a time: AVX2 with FMA, and AVX-VNNI where it is compiled for that. `avx512.h` has the same names for
// sixteen.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bert {

using F32 = __m256;
using I32 = __m256i;
using Lanes = __m256i;  // all bits of a lane

constexpr int kLanes = 8;
// A tile of C = A·B is at most 6 rows by a panel of two vectors: 12 accumulators of 16 registers.
constexpr int kRows = 6;
// Bytes of a weight that all rows pass by before the next: they should stay in the second-level cache, of 512 KB on
// Zen 3.
constexpr size_t kPartBytes = 256 * 1024;

inline Lanes first_lanes(ptrdiff_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
// Those of the first `count` lanes that are not 0 in memory.
inline Lanes lanes_of(const bool* memory, ptrdiff_t count) {
  uint64_t bytes = 0;
  if (count > 0) std::memcpy(&bytes, memory, count < 8 ? static_cast<size_t>(count) : 8);
  return _mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes))),
                            _mm256_setzero_si256());
}
inline F32 select(Lanes lanes, F32 yes, F32 no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(lanes)); }
inline F32 zero_where_equal(F32 x, F32 a, F32 b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ), x); }

inline F32 all(float value) { return _mm256_set1_ps(value); }
inline I32 all(int32_t value) { return _mm256_set1_epi32(value); }
inline I32 no_ints() { return _mm256_setzero_si256(); }
inline F32 load(const float* memory) { return _mm256_load_ps(memory); }
inline I32 load_ints(const void* memory) { return _mm256_load_si256(static_cast<const __m256i*>(memory)); }
inline void store(void* memory, I32 x) { _mm256_store_si256(static_cast<__m256i*>(memory), x); }
inline void store(float* memory, F32 x) { _mm256_store_ps(memory, x); }
// The first `count` values, wherever they lie; zeros behind them. Masked moves are slow on AMD's processors.
inline F32 load(const float* memory, ptrdiff_t count) {
  return count >= kLanes ? _mm256_loadu_ps(memory) : _mm256_maskload_ps(memory, first_lanes(count));
}
inline void store(float* memory, F32 x, ptrdiff_t count) {
  if (count >= kLanes) return _mm256_storeu_ps(memory, x);
  _mm256_maskstore_ps(memory, first_lanes(count), x);
}

inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm256_fnmadd_ps(a, b, c); }
// Of NaN and a number, the second.
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline I32 max(I32 a, I32 b) { return _mm256_max_epi32(a, b); }
inline F32 magnitude(F32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline F32 magnitude(F32 x, F32 most) { return min(magnitude(x), most); }
template <class F>
inline float folded(F32 x, const F& f) {
  __m128 half = f(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = f(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(f(half, _mm_movehdup_ps(half)));
}
inline float sum_of(F32 x) {
  return folded(x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}
inline float largest_of(F32 x) {
  return folded(x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}

inline I32 nearest_ints(F32 x) { return _mm256_cvtps_epi32(x); }
inline F32 nearest(F32 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F32 floats(I32 x) { return _mm256_cvtepi32_ps(x); }
inline I32 bits(F32 x) { return _mm256_castps_si256(x); }
inline F32 of_bits(I32 x) { return _mm256_castsi256_ps(x); }
// x · 2ⁿ, for whole n from -126 on
inline F32 scaled(F32 x, F32 n) {
  return _mm256_mul_ps(x, of_bits(_mm256_slli_epi32(_mm256_add_epi32(nearest_ints(n), all(127)), 23)));
}

// Polynomials by pieces: a coefficient for each lane, by the lowest bits of its number.
template <int Pieces>
inline F32 lookup(const float* table, I32 piece) {
  static_assert(Pieces == 8);
  return _mm256_permutevar8x32_ps(load(table), piece);
}

// The lower halves of `low`, and those of `high` in the upper ones.
inline I32 pairs(I32 low, I32 high) { return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa); }
// 16-bit integers of both, which take turns, 128 bits of each.
inline I32 to_shorts(I32 a, I32 b) { return _mm256_packs_epi32(a, b); }
inline I32 to_shorts_in_order(I32 a, I32 b) { return _mm256_permute4x64_epi64(to_shorts(a, b), 0xd8); }
// Of four vectors of integers, saturated to bytes: the first's, the second's, and so on.
inline I32 to_bytes(I32 a, I32 b, I32 c, I32 d) {
  const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  // Each lane of 128 bits has four of each vector.
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline void store_bytes(uint8_t* memory, I32 bytes, ptrdiff_t count) {
  if (count >= 32) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(memory), bytes);
  alignas(32) uint8_t kept[32];
  store(kept, bytes);
  std::memcpy(memory, kept, static_cast<size_t>(count));
}
// One half of them.
inline void store_bytes(uint8_t* memory, I32 bytes, int half, ptrdiff_t count) {
  const __m128i part = half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
  if (count >= 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(memory), part);
  alignas(16) uint8_t kept[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(kept), part);
  std::memcpy(memory, kept, static_cast<size_t>(count));
}

// Rows become columns, in groups of 4 bytes.
inline void transpose(I32 (&rows)[8]) {
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
  for (int j = 0; j < 4; ++j) {  // quads[4·i + j] has column 4·lane + j of rows 4·i… in each lane of 128 bits
    rows[j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x20);
    rows[4 + j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x31);
  }
}

// Products to sums; of a panel, `kStep` bytes hold what 4 bytes of each row are multiplied by.
struct WholeVectors {
  static constexpr int kStep = 64;
  static I32 weights(const uint8_t* panel, int half) { return load_ints(panel + 32 * half); }
};

#ifdef __AVXVNNI__

// Two of signed 16-bit integers.
struct Shorts : WholeVectors {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
};

// Four of unsigned by signed bytes.
struct Bytes : WholeVectors {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
  static F32 to_floats(I32 sum) { return floats(sum); }
};

using NarrowBytes = Bytes;

#else

// Two of signed 16-bit integers.
struct Shorts : WholeVectors {
  static I32 dot(I32 sum, I32 a, I32 b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
};

// Two of unsigned by signed bytes, of 16 bits both: two of their products may be more than 16 bits hold.
struct Bytes {
  using Input = uint16_t;
  static constexpr int kStep = 32;
  static I32 weights(const uint8_t* panel, int half) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(panel) + half));
  }
  static I32 dot(I32 sum, I32 a, I32 b) { return Shorts::dot(sum, a, b); }
  static F32 to_floats(I32 sum) { return floats(sum); }
};

// Four of unsigned by signed bytes of 7 bits, from -64 to 64: two of these products fit into 16 bits.
struct NarrowBytes : WholeVectors {
  using Input = uint8_t;
  static I32 dot(I32 sum, I32 a, I32 b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
  }
  static F32 to_floats(I32 sum) { return floats(sum); }
};

#endif

// One of floats.
struct Floats : WholeVectors {
  using Input = float;
  static I32 dot(I32 sum, I32 a, I32 b) { return bits(fma(of_bits(a), of_bits(b), of_bits(sum))); }
  static F32 to_floats(I32 sum) { return of_bits(sum); }
};

}  // namespace bert
