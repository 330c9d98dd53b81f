// GEMM microkernel of NEON: like that of gemm_microkernel.h, but 16 bytes of each row of A are loaded at once, and the
// dot products take 4 of them as an operand, so that nothing is broadcast.
//
//     A          k, k+1, k+2, k+3            steps of 4 bytes
//   r = 0    [ 4 B ][ 4 B ][ 4 B ][ 4 B ]    acc[r][h] = dot<Step>(acc[r][h], row r, b_h of that step)
//
// Matrix products (DotU8S8 with FEAT_I8MM, DotBF16 with FEAT_BF16) multiply two rows by two columns instead, 8 bytes of
// each; E is how many elements these are, 8 or 4:
//
//     A: 2 rows × E      B: E × 2 columns                   sums[pair of rows][pair of columns]
//   [ a00 … a07 ]        [ b00 … b70 ] column 0             [ r0·c0  r0·c1  r1·c0  r1·c1 ]
//   [ a10 … a17 ]        [ b01 … b71 ] column 1
//
//   panel   [K / E, C, E], then [C, E / 2] if 4 bytes of each column are left
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

namespace bert {

template <int Bytes>
inline BERT_ALWAYS_INLINE void prefetch_to_l2(const uint8_t* first) {
  for (int byte = 0; byte < Bytes; byte += 64) __builtin_prefetch(first + byte, 0, 2);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

template <class Dot>
struct MatrixProductOrder {
  static size_t index(size_t k, size_t column, size_t in_features) {
    constexpr size_t kStep = 4 / sizeof(typename Dot::Input);  // elements
    const size_t group = k < round_up(in_features, kStep) / (2 * kStep) * (2 * kStep) ? 2 * kStep : kStep;
    return k / group * group * kPanelColumns + column * group + k % group;
  }
};
template <>
struct PanelOrder<DotU8S8> : MatrixProductOrder<DotU8S8> {};
#ifdef BERT_BF16
template <>
struct PanelOrder<DotBF16> : MatrixProductOrder<DotBF16> {};
#endif

// Adds the products of 8 bytes of A, two rows in a vector, to the sums: `panel` has 8 bytes of each column.
template <class Dot, int Pairs>
inline BERT_ALWAYS_INLINE void multiply_pairs(const I32 (&a)[Pairs], const uint8_t* panel, I32 (&sums)[Pairs][4]) {
#pragma GCC unroll 4
  for (int columns = 0; columns < 4; ++columns) {
    const I32 b = load_i32(panel + 16 * columns);
#pragma GCC unroll 4
    for (int pair = 0; pair < Pairs; ++pair) sums[pair][columns] = Dot::multiply(sums[pair][columns], a[pair], b);
  }
}

// The same for the last 4 bytes of each row and of each column.
template <class Dot, int Pairs, class Row>
inline BERT_ALWAYS_INLINE void multiply_last_pairs(const Row& row, const uint8_t* panel, I32 (&sums)[Pairs][4]) {
  const auto pair_of = [](const uint8_t* first, const uint8_t* second) {
    uint32_t bytes[2];
    std::memcpy(&bytes[0], first, 4);
    std::memcpy(&bytes[1], second, 4);
    return vreinterpretq_s32_u32(vcombine_u32(vcreate_u32(bytes[0]), vcreate_u32(bytes[1])));
  };
  for (int columns = 0; columns < 4; ++columns) {
    const I32 b = pair_of(panel + 8 * columns, panel + 8 * columns + 4);
    for (int pair = 0; pair < Pairs; ++pair)
      sums[pair][columns] = Dot::multiply(sums[pair][columns], pair_of(row(2 * pair), row(2 * pair + 1)), b);
  }
}

template <class Dot, int R, int PrefetchBytes>
inline BERT_ALWAYS_INLINE void multiply_matrices(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps,
                                                 I32 (&acc)[R][2], const uint8_t* prefetch) {
  constexpr int kPairs = (R + 1) / 2;
  // Of an odd number of rows, the last one is its own partner.
  auto row = [&](int r) BERT_ALWAYS_INLINE { return a + (r < R ? r : R - 1) * a_stride; };
  I32 sums[kPairs][4];
  for (auto& pair : sums) std::fill_n(pair, 4, zero_i32());
  size_t k = 0;
  for (; k + 4 <= steps; k += 4) {
    prefetch_to_l2<4 * PrefetchBytes>(prefetch + PrefetchBytes * k);
    I32 first[kPairs], second[kPairs];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint64x2_t upper = vreinterpretq_u64_u8(vld1q_u8(row(2 * pair) + 4 * k));
      const uint64x2_t lower = vreinterpretq_u64_u8(vld1q_u8(row(2 * pair + 1) + 4 * k));
      first[pair] = vreinterpretq_s32_u64(vzip1q_u64(upper, lower));
      second[pair] = vreinterpretq_s32_u64(vzip2q_u64(upper, lower));
    }
    multiply_pairs<Dot>(first, panel + Dot::kStepBytes * k, sums);
    multiply_pairs<Dot>(second, panel + Dot::kStepBytes * (k + 2), sums);
  }
  if (k + 2 <= steps) {
    I32 pairs[kPairs];
    for (int pair = 0; pair < kPairs; ++pair)
      pairs[pair] =
          vreinterpretq_s32_u8(vcombine_u8(vld1_u8(row(2 * pair) + 4 * k), vld1_u8(row(2 * pair + 1) + 4 * k)));
    multiply_pairs<Dot>(pairs, panel + Dot::kStepBytes * k, sums);
    k += 2;
  }
  if (k < steps) multiply_last_pairs<Dot>([&](int r) { return row(r) + 4 * k; }, panel + Dot::kStepBytes * k, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int64x2_t left = vreinterpretq_s64_s32(sums[r / 2][2 * half]);
      const int64x2_t right = vreinterpretq_s64_s32(sums[r / 2][2 * half + 1]);
      const int64x2_t columns = r % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right);
      acc[r][half] = Dot::add(acc[r][half], vreinterpretq_s32_s64(columns));
    }
}

#elif !defined(__ARM_FEATURE_DOTPROD)

// Of the 4 columns of a vector, the first weights stand before the second ones, as in pair_i16.
template <>
struct PanelOrder<DotU8S8> {
  static size_t index(size_t k, size_t column, size_t) {
    return (k / 2 * kPanelColumns + column / kLanes * kLanes) * 2 + k % 2 * kLanes + column % kLanes;
  }
};

#endif

// acc[r][h] += the Step-th 4 bytes of row r · half h of the columns of that step of a B panel.
template <class Dot, int Step, int R>
inline BERT_ALWAYS_INLINE void multiply_step(const I32 (&rows)[R], const uint8_t* panel, I32 (&acc)[R][2]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const I32 b = Dot::load_b(panel + Dot::kStepBytes * Step, half);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][half] = Dot::template dot<Step>(acc[r][half], rows[r], b);
  }
}

template <class Dot, int R, int PrefetchBytes>
inline BERT_ALWAYS_INLINE void multiply_lanes(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps,
                                              I32 (&acc)[R][2], const uint8_t* prefetch) {
  I32 rows[R];
  size_t k = 0;
  for (; k + 4 <= steps; k += 4, panel += 4 * Dot::kStepBytes) {
    prefetch_to_l2<4 * PrefetchBytes>(prefetch + PrefetchBytes * k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) rows[r] = vreinterpretq_s32_u8(vld1q_u8(a + r * a_stride + 4 * k));
    multiply_step<Dot, 0>(rows, panel, acc);
    multiply_step<Dot, 1>(rows, panel, acc);
    multiply_step<Dot, 2>(rows, panel, acc);
    multiply_step<Dot, 3>(rows, panel, acc);
  }
  for (; k < steps; ++k, panel += Dot::kStepBytes) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t four_bytes;
      std::memcpy(&four_bytes, a + r * a_stride + 4 * k, 4);
      rows[r] = set1(four_bytes);
    }
    multiply_step<Dot, 0>(rows, panel, acc);
  }
}

// See gemm_microkernel.h.
template <class Dot, int R, int PrefetchBytes = 0>
inline BERT_ALWAYS_INLINE void gemm_microkernel(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps,
                                                I32 (&acc)[R][2], const uint8_t* prefetch = nullptr) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (std::is_base_of_v<MatrixProductPanel, Dot>)
    return multiply_matrices<Dot, R, PrefetchBytes>(a, a_stride, panel, steps, acc, prefetch);
  else
#endif
    multiply_lanes<Dot, R, PrefetchBytes>(a, a_stride, panel, steps, acc, prefetch);
}

}  // namespace bert
