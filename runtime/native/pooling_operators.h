// ONNX Runtime operators of heads: MeanPool, MeanPoolNormalize and FirstTokenAttention.
// Kernels: pooling.cc, one_query_attention.cc.
#pragma once
#include <cmath>

#include "attention_operators.h"
#include "kernels.h"
#include "onnxruntime_tensors.h"
#include "packed_rows.h"
#include "scratch.h"

namespace bert::operators {

using namespace ort;

// (x float32 [B, T, C], mask bool or int64 [B, T]) → y float32 [B, C], the mean over the tokens, each as often as its
// number in the mask says; normalized to length 1 by MeanPoolNormalize
template <bool is_normalized>
struct MeanPoolOperator {
  static constexpr const char* kName = is_normalized ? "MeanPoolNormalize" : "MeanPool";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType};
  static constexpr ElementType kOutputs[] = {kFloat};

  static Status* create(const KernelInfo*, void** kernel) {
    *kernel = new MeanPoolOperator;
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[2];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [x, mask] = inputs;
    SequenceRows rows = {};
    RETURN_IF_ERROR(read_masked_rows(x, mask, "expected x [B, T, C], and a mask of bool or int64 [B, T]", rows));
    static thread_local Scratch scratch;
    auto* weights = reinterpret_cast<float*>(scratch.reserve(mask.size() * sizeof(float)));
    for (size_t i = 0; i < mask.size(); ++i)
      weights[i] = mask.type == kBool ? static_cast<float>(mask.as<uint8_t>()[i] != 0)
                                      : static_cast<float>(mask.as<int64_t>()[i]);
    float* y = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, Tensor{nullptr, {mask.dimensions[0], x.dimensions[2]}, 2}, &y));
    const MeanPool pool = {rows, x.last_dimension(), x.as<float>(), weights, is_normalized};
    pool.compute(y, thread_pool(context));
    return nullptr;
  }
};

// (query float32 [B, 1, H·S], kv float32 [B, T, 2·H·S]: keys and values, mask of read_mask [B, T]) → y float32 [B, 1,
// H·S]
struct FirstTokenAttention {
  static constexpr const char* kName = "FirstTokenAttention";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kAnyType};
  static constexpr ElementType kOutputs[] = {kFloat};
  AttentionAttributes attributes;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    RETURN_IF_ERROR(attributes.read(info, Variant::kSelf));
    *kernel = new FirstTokenAttention{attributes};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[3];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [query, kv, mask] = inputs;
    const size_t width = query.last_dimension(), num_heads = attributes.num_heads;
    SequenceRows rows = {};
    if (kv.rank == 3) RETURN_IF_ERROR(read_sequence_rows(kv, mask, rows));
    const auto batch = static_cast<int64_t>(rows.batch), tokens = static_cast<int64_t>(rows.tokens);
    if (query.rank != 3 || kv.rank != 3 || query.dimensions[1] != 1 || query.dimensions[0] != batch || !width ||
        width % num_heads || kv.last_dimension() != 2 * width)
      return invalid_argument("expected a query [B, 1, num_heads·S], and keys and values [B, T, 2·num_heads·S]");
    if (mask.rank != 2) return invalid_argument("expected a mask [B, T]");
    MaskRows mask_rows = {};
    RETURN_IF_ERROR(read_mask(mask, Tensor{}, batch, tokens, mask_rows));
    float* y = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, query, &y));
    const OneQueryAttention attention = {
        rows, num_heads, width / num_heads, attributes.scale, query.as<float>(), kv.as<float>(), mask_rows.values};
    attention.compute(y, thread_pool(context));
    return nullptr;
  }
};

}  // namespace bert::operators
