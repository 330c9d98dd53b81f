// The bytes of A that the GEMM microkernel reads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace bert {

// Returns `count` elements of A as the bytes that the microkernel reads: in this thread's memory, widened if it takes
// wider integers, or less kInputShift if it takes signed ones.
template <class Wide, class Input>
const uint8_t* widened(const Input* x, size_t count) {
  if constexpr (std::is_same_v<Wide, Input>) {
    return reinterpret_cast<const uint8_t*>(x);
  } else {
    static thread_local Scratch scratch;
    uint8_t* memory = scratch.reserve(count * sizeof(Wide));
    constexpr int kShift = std::is_same_v<Wide, int8_t> ? 128 : 0;
    std::transform(x, x + count, reinterpret_cast<Wide*>(memory),
                   [](Input element) { return static_cast<Wide>(element - kShift); });
    return memory;
  }
}

}  // namespace bert
