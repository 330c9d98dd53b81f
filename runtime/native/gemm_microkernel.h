// GEMM microkernel: a tile of R × kPanelColumns (MR × NR) accumulators in registers, over all of K. The int8 and
// float32 matmuls of gemm.cc and both matmuls of attention run it.
//
//                      B panel (packing.h): kStepBytes per step
//                      <-- kLanes --><-- kLanes -->
//                   k  [     b0     ][     b1     ]
//     A         k
//   r = 0    [ 4 B ]   [ acc[0][0]  ][ acc[0][1]  ]      4 bytes of a row of A (4 × uint8, 2 × 16 bits or
//   r = 1    [ 4 B ]   [ acc[1][0]  ][ acc[1][1]  ]      1 × float32) are broadcast to all lanes:
//     …        …            …             …              acc[r][h] = dot(acc[r][h], broadcast, b_h)
//   r = R-1  [ 4 B ]   [acc[R-1][0] ][acc[R-1][1] ]
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "simd.h"

namespace bert {

constexpr int kPanelColumns = 2 * kLanes;  // NR

#ifdef BERT_AMX
constexpr bool kHasAmx = true;
#else
constexpr bool kHasAmx = false;
#endif

// Bytes of K that are multiplied at once: a step of the microkernel, or a row of a tile (tiles.h). K of packed operands
// of T is padded with zeros to a multiple.
template <class T>
constexpr size_t kDepthBytes = kHasAmx && sizeof(T) < 4 ? 64 : 4;

// Whether the linear layers multiply by tiles, of so many rows of A.
template <class Dot>
constexpr bool kHasTiles = kHasAmx && !std::is_same_v<typename Dot::Input, float>;
constexpr size_t kTileRows = 16;

// Where weight k of a column stands in a panel [K / G, C, G], see packing.h.
template <class Dot>
struct PanelOrder {
  static size_t index(size_t k, size_t column, size_t) {
    constexpr size_t kGroup = 4 / sizeof(typename Dot::Input);
    return (k / kGroup * kPanelColumns + column) * kGroup + k % kGroup;
  }
};

template <int R>
inline void zero_accumulators(I32 (&acc)[R][2]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero_i32();
}

}  // namespace bert

#if defined(__aarch64__)
#include "neon_microkernel.h"
#endif

namespace bert {

#if !defined(__aarch64__)

// acc[r][h] += row r of A · half h of the columns of a B panel. Rows of A are `a_stride` bytes apart. `steps` is K
// divided by the elements in 4 bytes: each step consumes 4 bytes of every A row. If PrefetchBytes > 0, each step also
// prefetches the next PrefetchBytes bytes from `prefetch` on into L2.
template <class Dot, int R, int PrefetchBytes = 0>
inline BERT_ALWAYS_INLINE void gemm_microkernel(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps,
                                                I32 (&acc)[R][2], const uint8_t* prefetch = nullptr) {
  // Four pointers, each for three rows, are as many as the addressing modes and registers of x86 can serve.
  const uint8_t* rows[4] = {a, a + 3 * a_stride, a + 6 * a_stride, a + 9 * a_stride};
  for (size_t k = 0; k < steps; ++k) {
    const I32 b0 = Dot::load_b(panel + Dot::kStepBytes * k, 0);
    const I32 b1 = Dot::load_b(panel + Dot::kStepBytes * k, 1);
#pragma GCC unroll 2
    for (int byte = 0; byte < PrefetchBytes; byte += 64) __builtin_prefetch(prefetch + PrefetchBytes * k + byte, 0, 2);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t four_bytes;
      std::memcpy(&four_bytes, rows[r / 3] + (r % 3) * a_stride + 4 * k, 4);
      const I32 broadcast = set1(four_bytes);
      acc[r][0] = Dot::dot(acc[r][0], broadcast, b0);
      acc[r][1] = Dot::dot(acc[r][1], broadcast, b1);
    }
  }
  // Keeps the accumulators in registers: compilers that see the code behind the loop have spilled them to memory during
  // the loop, which took a seventh longer.
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) asm("" : "+v"(acc[r][0]), "+v"(acc[r][1]));
}

#endif

// Returns Kernel::run<rows>, for a number of rows from 1 to kMaxTileRows that is known at run time only.
template <class Kernel, int... R>
auto kernel_by_rows(size_t rows, std::integer_sequence<int, R...>) {
  static constexpr decltype(&Kernel::template run<1>) functions[] = {&Kernel::template run<R + 1>...};
  return functions[rows - 1];
}
template <class Kernel>
auto kernel_by_rows(size_t rows) {
  return kernel_by_rows<Kernel>(rows, std::make_integer_sequence<int, kMaxTileRows>{});
}

// Calls f(first row, row count) for blocks of at most kMaxTileRows rows that divide `rows` evenly.
template <class F>
void for_each_row_block(size_t rows, const F& f) {
  const size_t blocks = ceil_div(rows, kMaxTileRows);
  for (size_t block = 0; block < blocks; ++block) {
    const size_t first = block * rows / blocks;
    f(first, (block + 1) * rows / blocks - first);
  }
}

// Writes a tile of R × kPanelColumns values as uint8: value(r, half) are int32 lanes, which saturate. `columns` are
// valid from the first on; rows of y are `stride` bytes apart.
template <int R, class Value>
inline BERT_ALWAYS_INLINE void store_tile_u8(uint8_t* y, size_t stride, ptrdiff_t columns, const Value& value) {
#pragma GCC unroll 6
  for (int r = 0; r < R; r += 2) {
    const int next = r + 1 < R ? r + 1 : r;
    const I32 bytes = narrow_to_u8(value(r, 0), value(r, 1), value(next, 0), value(next, 1));
    store_u8_half_n(y + r * stride, bytes, 0, columns);
    if (next > r) store_u8_half_n(y + next * stride, bytes, 1, columns);
  }
}

}  // namespace bert
