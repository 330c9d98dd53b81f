// Vectors of the instruction set that the library is compiled for (kLanes float32 lanes), and helpers of all kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "scratch.h"
#if defined(__aarch64__)
#include "neon.h"
#elif defined(BERT_AVX2)
#include "avx2.h"
#else
#include "avx512.h"
#endif

// For parts of a kernel that keep accumulators in registers: a call would spill them to memory.
#define BERT_ALWAYS_INLINE __attribute__((always_inline))

namespace bert {

// Upper clamp of values that become uint8: converting float32 values from 2³¹ on to int32 would turn them negative.
constexpr float kClampBeforeU8 = 1024;

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
constexpr size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
// Elements from `first` to `end`, the count of `load_n` and `store_n`; negative behind the end.
inline ptrdiff_t remaining(size_t end, size_t first) {
  return static_cast<ptrdiff_t>(end) - static_cast<ptrdiff_t>(first);
}

#ifdef BERT_BF16
// Rounds up to 2 · kLanes floats to bfloat16, with zeros behind `count`.
inline I32 load_bf16(const float* x, ptrdiff_t count) {
  return narrow_to_bf16(load_n(x, count), load_n(x + kLanes, count - kLanes));
}
#endif

}  // namespace bert
