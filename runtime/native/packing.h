// Packed weights: panels of C = kPanelColumns columns of B [K, N], in the order of the GEMM microkernel's reads.
//
//   layout [N / C, K / G, C, G], with zeros for the columns beyond N
//   G: weights of a column that meet 4 bytes of a row of A
//
//                       int8, VNNI or 7-bit weights   int8, AVX2 without VNNI   bfloat16   float32
//      Dot              DotU8S8, DotU8S7              DotU8S8 (16-bit A)        DotBF16    DotF32
//      G                4                             2                         2          1
//
//   K is padded with zeros to a multiple of G, or of the 64 bytes of a tile's row with AMX.
//
//   neon_microkernel.h says what differs on arm64.
//
//   B [K, N], row-major                        panel 0 of int8 weights with G = 4
//
//         n=0  1   2  …  C-1 | C  …            step 0  [a0 b0 c0 d0][a1 b1 c1 d1][a2 b2 c2 d2] …
//   k=0   a0   a1  a2        |                 step 1  [e0 f0 g0 h0][e1 f1 g1 h1][e2 f2 g2 h2] …
//     1   b0   b1  b2        |                   …      <- column 0 -><- column 1 ->
//     2   c0   c1  c2        |
//     3   d0   d1  d2        |                 A step holds kStepBytes = C · G · sizeof(Weight) bytes: two vectors, or
//     4   e0   e1  e2        |                 one vector of int8 that DotU8S8 of AVX2 widens to two of int16.
//     …                      |
//           panel 0            panel 1
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "gemm_microkernel.h"
#include "kernels.h"

namespace bert {

// The dot product that any weight of this type can be multiplied with.
template <class Weight>
struct DotOfWeight {
  using Dot = DotU8S8;
};
template <>
struct DotOfWeight<float> {
  using Dot = DotF32;
};
#ifdef BERT_BF16
template <>
struct DotOfWeight<BFloat16> {
  using Dot = DotBF16;
};
#endif
template <class Weight>
using DotOf = typename DotOfWeight<Weight>::Dot;

// Elements of a panel: a column's weights fill whole steps.
template <class Weight>
size_t panel_size(size_t in_features) {
  return kPanelColumns * round_up(in_features, kDepthBytes<Weight> / sizeof(Weight));
}

template <class Weight>
struct PackedWeight {
  size_t in_features, out_features;  // K, N
  bool is_7_bit;                     // all int8 weights are from -64 to 64, packed for DotU8S7
  std::shared_ptr<Weight[]> panels;
  std::vector<int32_t> column_sums;  // Σ over K of int8 weights [N], for the correction by the zero point; else empty
};

template <class T>
AlignedArray<T> allocate_array(size_t count) {
  return AlignedArray<T>(static_cast<T*>(allocate_aligned(count * sizeof(T))));
}

// Returns the packed copy of a weight [in_features, out_features]: one that another layer or session holds, if its
// weight is equal, or a new one. If the weight is mapped from a file, releases the mapped pages.
template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> packed_weight(const Weight* weight, size_t in_features,
                                                          size_t out_features);

}  // namespace bert
