// ONNX Runtime operators that pool the scores of a vocabulary: VocabularyMax, Bf16VocabularyMax and
// QuantizedVocabularyMax. Kernel: gemm_max.cc.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include "linear_operators.h"
#include "packed_rows.h"

namespace bert::operators {

// Reads the input x [B, T, K], or packed rows [1, N, K], and the mask [B, T], allocates the output y [B, N], and pools.
template <class Input, class Weight>
Status* compute_vocabulary_max(KernelContext* context, const bert::Linear<Input, Weight>& linear, size_t mask_index) {
  Tensor x, mask;
  RETURN_IF_ERROR(read_input(context, 0, x));
  RETURN_IF_ERROR(read_input(context, mask_index, mask));
  if (x.rank != 3 || x.last_dimension() != linear.in_features())
    return invalid_argument("expected an input [B, T, K] for a weight of K inputs");
  SequenceRows rows = {};
  RETURN_IF_ERROR(read_sequence_rows(x, mask, rows));
  if (!mask.has_shape({static_cast<int64_t>(rows.batch), static_cast<int64_t>(rows.tokens)}))
    return invalid_argument("expected a mask [B, T]");
  const TokenMask tokens = {rows, mask.as<int64_t>()};
  Tensor like = mask;
  like.rank = 2;
  like.dimensions[1] = static_cast<int64_t>(linear.out_features());
  float* y = nullptr;
  RETURN_IF_ERROR(allocate_output(context, 0, like, &y));
  linear.matmul_max(x.as<Input>(), tokens, y, thread_pool(context));
  return nullptr;
}

// (x float32 [B, T, K], weight float32 or bfloat16 [N, K], bias [N], mask int64 [B, T]) → y float32 [B, N]
template <class Weight>
struct VocabularyMax {
  static constexpr const char* kName = kIsBf16<Weight> ? "Bf16VocabularyMax" : "VocabularyMax";
  static constexpr ElementType kInputs[] = {kFloat, kElementType<Weight>, kFloat, kInt64};
  static constexpr ElementType kOutputs[] = {kFloat};
  FloatInputLinear<Weight> linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[2];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    const auto& [weight, bias] = constants;
    if (weight.rank != 2 || !weight.size() || !bias.is_vector(static_cast<size_t>(weight.dimensions[0])))
      return invalid_argument("expected a weight [N, K], and N biases");
    const size_t in_features = weight.last_dimension(), out_features = bias.last_dimension();
    const std::unique_ptr<Weight[]> transposed(new Weight[weight.size()]);
    transpose(weight.as<Weight>(), out_features, in_features, transposed.get());
    release_mapped_pages(weight.data, weight.size() * sizeof(Weight));
    *kernel = new VocabularyMax{make_float_linear(transposed.get(), bias.as<float>(), in_features, out_features)};
    return nullptr;
  }

  Status* compute(KernelContext* context) const { return compute_vocabulary_max(context, linear, 3); }

  // Transposes [rows, columns] in squares whose cache lines stay in L1.
  static void transpose(const Weight* x, size_t rows, size_t columns, Weight* y) {
    constexpr size_t kSquare = 32;
    for (size_t row = 0; row < rows; row += kSquare)
      for (size_t column = 0; column < columns; column += kSquare)
        for (size_t i = row; i < std::min(row + kSquare, rows); ++i)
          for (size_t j = column; j < std::min(column + kSquare, columns); ++j) y[j * rows + i] = x[i * columns + j];
  }
};

// (inputs of QuantizedLinear, with x uint8 [B, T, K], mask int64 [B, T]) → y float32 [B, N]
struct QuantizedVocabularyMax {
  static constexpr const char* kName = "QuantizedVocabularyMax";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat, kInt64};
  static constexpr ElementType kOutputs[] = {kFloat};
  Int8Linear linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[5];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    return create_int8_linear(constants, 1, kernel,
                              [](Int8Linear&& linear) { return new QuantizedVocabularyMax{std::move(linear)}; });
  }

  Status* compute(KernelContext* context) const { return compute_vocabulary_max(context, linear, 6); }
};

}  // namespace bert::operators
