// Weights as the products take them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "simd.h"

namespace bert {

template <class Weight>
using DotOf = std::conditional_t<std::is_same_v<Weight, float>, Floats, Bytes>;

// A weight [inputs, outputs] as panels [outputs / C, inputs / G, C, G], where C is kColumns and G weights are multiplied
// by 4 bytes of an input, with zeros beyond the last column.
template <class Weight>
struct PackedWeight {
  size_t inputs, outputs;
  bool is_narrow;  // whether NarrowBytes multiply it, which not all weights are for
  Aligned<Weight> panels;
  std::vector<int32_t> sums;  // of each column of bytes
};

template <class T>
Aligned<T> allocate_numbers(size_t count) {
  return Aligned<T>(static_cast<T*>(allocate(count * sizeof(T))));
}

// A weight [inputs, outputs], packed now, or in memory already for another layer or session. Where it is mapped from a
// file, the memory of that is given back.
template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> packed_weight(const Weight* weight, size_t inputs, size_t outputs);

}  // namespace bert
