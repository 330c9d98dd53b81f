// The bytes of A that the GEMM microkernel reads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace bert {

// Returns `count` elements of A as the bytes that the microkernel reads, widened in this thread's memory if it takes
// wider integers.
template <class Wide, class Input>
const uint8_t* widened(const Input* x, size_t count) {
  if constexpr (std::is_same_v<Wide, Input>) {
    return reinterpret_cast<const uint8_t*>(x);
  } else {
    static thread_local Scratch scratch;
    uint8_t* memory = scratch.reserve(count * sizeof(Wide));
    std::copy_n(x, count, reinterpret_cast<Wide*>(memory));
    return memory;
  }
}

}  // namespace bert
