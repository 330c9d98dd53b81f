// What the kernels share: products of integer tiles, and what is done with 16 floats at a time.
// Needs AVX-512 with VNNI (F, BW, DQ, VL, VNNI).
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bert {

// A tile of C = A·B is at most 12 rows by a panel of 32 columns: 24 accumulators of 32 registers.
constexpr int kRows = 12;
constexpr int kColumns = 32;
constexpr int kGroupBytes = 4 * kColumns;  // of a panel, which 4 bytes of each row are multiplied by

inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
inline size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

// Four products of unsigned by signed bytes to a sum.
struct Bytes {
  static __m512i dot(__m512i sum, __m512i a, __m512i b) { return _mm512_dpbusd_epi32(sum, a, b); }
  static __m512 floats(__m512i sum) { return _mm512_cvtepi32_ps(sum); }
};

// Two products of signed 16-bit integers to a sum.
struct Shorts {
  static __m512i dot(__m512i sum, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(sum, a, b); }
};

// A product of floats to a sum.
struct Floats {
  static __m512i dot(__m512i sum, __m512i a, __m512i b) {
    return _mm512_castps_si512(
        _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), _mm512_castsi512_ps(sum)));
  }
  static __m512 floats(__m512i sum) { return _mm512_castsi512_ps(sum); }
};

template <int R>
inline void clear(__m512i (&acc)[R][2]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_si512();
}

// acc[r][h] += A's row r by columns 16h… of a panel of B. Rows of A are `stride` bytes apart; the panel has `steps`
// groups of 32 columns by 4 bytes. `ahead` is what to ask the caches for meanwhile, `Lines` of 64 bytes for each group.
template <class Dot, int R, int Lines = 0>
inline __attribute__((always_inline)) void multiply(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps,
                                                    __m512i (&acc)[R][2], const uint8_t* ahead = nullptr) {
  // Four pointers, each for three rows, are as many as the addressing modes and registers of x86 can serve.
  const uint8_t* rows[4] = {a, a + 3 * stride, a + 6 * stride, a + 9 * stride};
  for (size_t k = 0; k < steps; ++k) {
    const __m512i b0 = _mm512_load_si512(panel + 128 * k);
    const __m512i b1 = _mm512_load_si512(panel + 128 * k + 64);
#pragma GCC unroll 2
    for (int line = 0; line < Lines; ++line) _mm_prefetch(ahead + 64 * (Lines * k + line), _MM_HINT_T1);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t group;
      std::memcpy(&group, rows[r / 3] + (r % 3) * stride + 4 * k, 4);
      const __m512i broadcast = _mm512_set1_epi32(group);
      acc[r][0] = Dot::dot(acc[r][0], broadcast, b0);
      acc[r][1] = Dot::dot(acc[r][1], broadcast, b1);
    }
  }
  // Compilers that see what follows have kept sums in memory during the loop, which took a seventh longer.
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) asm("" : "+v"(acc[r][0]), "+v"(acc[r][1]));
}

// Asks for the cache lines of a tile that will be written, or read, in a while: their rows are pages apart, where no
// prefetcher of the processor looks.
template <int R>
inline void prefetch(const void* first, size_t stride, size_t width) {
  for (int r = 0; r < R; ++r)
    for (size_t byte = 0; byte < width; byte += 64)
      __builtin_prefetch(static_cast<const char*>(first) + r * stride + byte, 1);
}

// The first `count` of 16 lanes.
inline __mmask16 first_lanes(ptrdiff_t count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}

// Floats above are set to this before they become integers; beyond 2³¹ the conversion would turn negative.
constexpr float kMoreThanBytes = 1024;

// Of four vectors of integers, saturated to bytes: the first's 16, the second's, and so on.
inline __m512i to_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i packed = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  // Each lane of 128 bits has four of each vector.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

}  // namespace bert
