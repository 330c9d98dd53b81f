// ONNX Runtime operators of multi-head self-attention: SelfAttention and RelativeAttention (float32),
// QuantizedAttention and QuantizedRelativeAttention (uint8 output). Kernels: float_attention.cc,
// quantized_attention.cc.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "onnxruntime_tensors.h"

namespace bert::operators {

using namespace ort;

struct AttentionAttributes {
  size_t num_heads;
  float scale;

  Status* read(const KernelInfo* info) {
    int64_t heads = 0;
    RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "num_heads", &heads));
    RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "scale", &scale));
    if (heads < 1 || !(scale > 0) || !std::isfinite(scale))
      return invalid_argument("expected num_heads of at least 1, and a finite scale above 0");
    num_heads = static_cast<size_t>(heads);
    return nullptr;
  }
};

// Reads the inputs (qkv, mask, is_full, bias if there is one), allocates the output y, and calls compute(attention, y,
// thread pool).
template <class Output, bool has_bias, class Compute>
Status* compute_attention(KernelContext* context, const AttentionAttributes& attributes, const Compute& compute) {
  Tensor inputs[3], bias;
  RETURN_IF_ERROR(read_inputs(context, inputs));
  if (has_bias) RETURN_IF_ERROR(read_input(context, 3, bias));
  const auto& [qkv, mask, is_full] = inputs;
  const size_t num_heads = attributes.num_heads, width = qkv.last_dimension() / 3;
  if (is_full.size() != 1) return invalid_argument("expected one flag that says whether the mask is full");
  if (qkv.rank != 3 || !width || qkv.last_dimension() % 3 || width % num_heads)
    return invalid_argument("expected queries, keys and values [B, T, 3·num_heads·S], S above 0");
  const int64_t batch = qkv.dimensions[0], tokens = qkv.dimensions[1];
  if (!mask.has_shape({batch, 1, tokens, tokens})) return invalid_argument("expected a mask [B, 1, T, T]");
  if (has_bias && !bias.has_shape({static_cast<int64_t>(num_heads), std::max<int64_t>(0, 2 * tokens - 1)}))
    return invalid_argument("expected a bias [num_heads, 2·T - 1]");
  const Attention attention = {static_cast<size_t>(batch),
                               static_cast<size_t>(tokens),
                               num_heads,
                               width / num_heads,
                               attributes.scale,
                               qkv.as<float>(),
                               *is_full.as<uint8_t>() ? nullptr : mask.as<uint8_t>(),
                               bias.as<float>()};
  Tensor like = qkv;
  like.dimensions[2] = static_cast<int64_t>(width);
  Output* y = nullptr;
  RETURN_IF_ERROR(allocate_output(context, 0, like, &y));
  compute(attention, y, thread_pool(context));
  return nullptr;
}

// Inputs of the operators. Those with a position bias have one more, float32 [H, 2·T - 1].
template <bool has_bias>
inline constexpr ElementType kAttentionInputs[] = {kFloat, kBool, kBool};
template <>
inline constexpr ElementType kAttentionInputs<true>[] = {kFloat, kBool, kBool, kFloat};
template <bool has_bias>
inline constexpr ElementType kQuantizedAttentionInputs[] = {kFloat, kBool, kBool, kFloat, kUint8};
template <>
inline constexpr ElementType kQuantizedAttentionInputs<true>[] = {kFloat, kBool, kBool, kFloat, kFloat, kUint8};

// (qkv float32 [B, T, 3·H·S], mask bool [B, 1, T, T], is_full bool: all of the mask is true[, bias]) → y float32
// [B, T, H·S]
template <bool has_bias>
struct FloatAttention {
  static constexpr const char* kName = has_bias ? "RelativeAttention" : "SelfAttention";
  static constexpr const auto& kInputs = kAttentionInputs<has_bias>;
  static constexpr ElementType kOutputs[] = {kFloat};
  AttentionAttributes attributes;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    RETURN_IF_ERROR(attributes.read(info));
    *kernel = new FloatAttention{attributes};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<float, has_bias>(
        context, attributes,
        [](const Attention& attention, float* y, const ThreadPool& threads) { attention.compute(y, threads); });
  }
};

// (inputs of FloatAttention, y scale, y zero point) → y uint8 [B, T, H·S]
template <bool has_bias>
struct QuantizedAttention {
  static constexpr const char* kName = has_bias ? "QuantizedRelativeAttention" : "QuantizedAttention";
  static constexpr const auto& kInputs = kQuantizedAttentionInputs<has_bias>;
  static constexpr ElementType kOutputs[] = {kUint8};
  AttentionAttributes attributes;
  QuantParams output;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    Tensor constants[2];
    QuantParams output;
    RETURN_IF_ERROR(attributes.read(info));
    RETURN_IF_ERROR(read_constants(info, has_bias ? 4 : 3, constants));
    RETURN_IF_ERROR(read_quant_params(constants[0], constants[1], output));
    *kernel = new QuantizedAttention{attributes, output};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<uint8_t, has_bias>(context, attributes,
                                                [&](const Attention& attention, uint8_t* y, const ThreadPool& threads) {
                                                  attention.compute(y, output, threads);
                                                });
  }
};

}  // namespace bert::operators
