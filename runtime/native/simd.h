// What the kernels share: tiles of products, in the vectors that the library is compiled for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels.h"
#ifndef BERT_AVX2
#include "avx512.h"
#else
#include "avx2.h"
#endif

namespace bert {

constexpr int kColumns = 2 * kLanes;  // of a panel

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
constexpr size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
inline ptrdiff_t left(size_t end, size_t first) { return static_cast<ptrdiff_t>(end) - static_cast<ptrdiff_t>(first); }

template <int R>
inline void clear(I32 (&acc)[R][2]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = no_ints();
}

// acc[r][h] += A's row r by half h of the columns of a panel of B. Rows of A are `stride` bytes apart; `steps` is how
// many times 4 bytes they have. `ahead` is what to ask the caches for meanwhile, so many bytes of it in each step.
template <class Dot, int R, int Ahead = 0>
inline __attribute__((always_inline)) void multiply(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps,
                                                    I32 (&acc)[R][2], const uint8_t* ahead = nullptr) {
  // Four pointers, each for three rows, are as many as the addressing modes and registers of x86 can serve.
  const uint8_t* rows[4] = {a, a + 3 * stride, a + 6 * stride, a + 9 * stride};
  for (size_t k = 0; k < steps; ++k) {
    const I32 b0 = Dot::weights(panel + Dot::kStep * k, 0);
    const I32 b1 = Dot::weights(panel + Dot::kStep * k, 1);
#pragma GCC unroll 2
    for (int byte = 0; byte < Ahead; byte += 64) _mm_prefetch(ahead + Ahead * k + byte, _MM_HINT_T1);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t group;
      std::memcpy(&group, rows[r / 3] + (r % 3) * stride + 4 * k, 4);
      const I32 broadcast = all(group);
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

// Floats above are set to this before they become integers; beyond 2³¹ the conversion would turn negative.
constexpr float kMoreThanBytes = 1024;

// Memory of a thread that grows and is given back when the thread ends.
class Scratch {
 public:
  uint8_t* take(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<uint8_t*>(allocate(bytes)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  Aligned<uint8_t> memory_;
  size_t size_ = 0;
};

}  // namespace bert
