// ONNX Runtime operators of attention with scores of relative positions: DisentangledAttention (float32),
// Bf16DisentangledAttention (the same with matmuls of bfloat16) and QuantizedDisentangledAttention (uint8 output).
#pragma once
#include <memory>

#include "attention_operators.h"
#include "kernels.h"
#include "onnxruntime_tensors.h"

namespace bert::operators {

using namespace ort;

// Reads the constants (position keys [H, P, S], position queries [H, P, S], key indices [2·M], query indices [2·M])
// from input 3 on, and makes *tables of them.
template <class T>
Status* read_position_tables(const KernelInfo* info, const AttentionAttributes& attributes,
                             std::unique_ptr<PositionTables<T>>& tables) {
  Tensor constants[4];
  RETURN_IF_ERROR(read_constants(info, 3, constants));
  const auto& [keys, queries, key_indices, query_indices] = constants;
  if (keys.rank != 3 || !keys.size() || static_cast<size_t>(keys.dimensions[0]) != attributes.num_heads ||
      !queries.has_shape_of(keys))
    return invalid_argument("expected positions as keys and as queries [num_heads, P, S]");
  if (key_indices.rank != 1 || !key_indices.size() || key_indices.size() % 2 ||
      !query_indices.has_shape_of(key_indices))
    return invalid_argument("expected indices of positions [2·M] for keys and queries");
  for (const Tensor* indices : {&key_indices, &query_indices})
    for (size_t i = 0; i < indices->size(); ++i)
      if (const int64_t index = indices->as<int64_t>()[i]; index < 0 || index >= keys.dimensions[1])
        return invalid_argument("expected indices of positions from 0 to P - 1");
  tables = std::make_unique<PositionTables<T>>(
      keys.as<float>(), queries.as<float>(), key_indices.as<int64_t>(), query_indices.as<int64_t>(),
      attributes.num_heads, static_cast<size_t>(keys.dimensions[1]), keys.last_dimension(), key_indices.size() / 2);
  return nullptr;
}

// Returns an error unless `tables` are for `attention`.
template <class T>
Status* check_position_tables(const Attention& attention, const PositionTables<T>& tables) {
  if (attention.head_size != tables.head_size)
    return invalid_argument("expected queries, keys and values of the head size of the positions");
  if (attention.tokens > tables.max_tokens) return invalid_argument("expected at most M tokens for indices [2·M]");
  return nullptr;
}

// (qkv float32 [B, T, 3·H·S], mask and is_full of read_mask, constants of read_position_tables) → y float32 [B, T, H·S]
template <bool in_bf16>
struct DisentangledAttention {
  static constexpr const char* kName = in_bf16 ? "Bf16DisentangledAttention" : "DisentangledAttention";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kFloat, kInt64, kInt64};
  static constexpr ElementType kOutputs[] = {kFloat};
  AttentionAttributes attributes;
  std::unique_ptr<PositionTables<float>> tables;

  static Status* create(const KernelInfo* info, void** kernel) {
    auto made = std::make_unique<DisentangledAttention>();
    RETURN_IF_ERROR(made->attributes.read(info, Variant::kSelf));
    RETURN_IF_ERROR(read_position_tables(info, made->attributes, made->tables));
    *kernel = made.release();
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Status* error = nullptr;
    Status* status = compute_attention<float, Variant::kSelf>(
        context, attributes, [&](const Attention& attention, float* y, const ThreadPool& threads) {
          error = check_position_tables(attention, *tables);
          if (!error) compute_floats<in_bf16>(attention, y, threads, tables.get());
        });
    return status ? status : error;
  }
};

// (inputs of DisentangledAttention, y scale, y zero point) → y uint8 [B, T, H·S]
struct QuantizedDisentangledAttention {
  static constexpr const char* kName = "QuantizedDisentangledAttention";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kFloat,
                                            kInt64, kInt64,   kFloat,          kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  AttentionAttributes attributes;
  std::unique_ptr<PositionTables<int16_t>> tables;
  QuantParams output;

  static Status* create(const KernelInfo* info, void** kernel) {
    auto made = std::make_unique<QuantizedDisentangledAttention>();
    Tensor constants[2];
    RETURN_IF_ERROR(made->attributes.read(info, Variant::kSelf));
    RETURN_IF_ERROR(read_constants(info, 7, constants));
    RETURN_IF_ERROR(read_quant_params(constants[0], constants[1], made->output));
    RETURN_IF_ERROR(read_position_tables(info, made->attributes, made->tables));
    *kernel = made.release();
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Status* error = nullptr;
    Status* status = compute_attention<uint8_t, Variant::kSelf>(
        context, attributes, [&](const Attention& attention, uint8_t* y, const ThreadPool& threads) {
          error = check_position_tables(attention, *tables);
          if (!error) attention.compute(y, output, threads, tables.get());
        });
    return status ? status : error;
  }
};

}  // namespace bert::operators
