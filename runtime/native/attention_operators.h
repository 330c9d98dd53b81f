// ONNX Runtime operators of multi-head self-attention: SelfAttention (float32) and QuantizedAttention (uint8 output).
// Kernels: float_attention.cc, quantized_attention.cc.
#pragma once
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

// Reads the inputs (qkv, mask, is_full), allocates the output y, and calls compute(attention, y, thread pool).
template <class Output, class Compute>
Status* compute_attention(KernelContext* context, const AttentionAttributes& attributes, const Compute& compute) {
  Tensor inputs[3];
  RETURN_IF_ERROR(read_inputs(context, inputs));
  const auto& [qkv, mask, is_full] = inputs;
  const size_t num_heads = attributes.num_heads, width = qkv.last_dimension() / 3;
  if (is_full.size() != 1) return invalid_argument("expected one flag that says whether the mask is full");
  if (qkv.rank != 3 || !width || qkv.last_dimension() % 3 || width % num_heads)
    return invalid_argument("expected queries, keys and values [B, T, 3·num_heads·S], S above 0");
  const int64_t batch = qkv.dimensions[0], tokens = qkv.dimensions[1];
  if (!mask.has_shape({batch, 1, tokens, tokens})) return invalid_argument("expected a mask [B, 1, T, T]");
  const Attention attention = {static_cast<size_t>(batch),
                               static_cast<size_t>(tokens),
                               num_heads,
                               width / num_heads,
                               attributes.scale,
                               qkv.as<float>(),
                               *is_full.as<uint8_t>() ? nullptr : mask.as<uint8_t>()};
  Tensor like = qkv;
  like.dimensions[2] = static_cast<int64_t>(width);
  Output* y = nullptr;
  RETURN_IF_ERROR(allocate_output(context, 0, like, &y));
  compute(attention, y, thread_pool(context));
  return nullptr;
}

// (qkv float32 [B, T, 3·H·S], mask bool [B, 1, T, T], is_full bool: all of the mask is true) → y float32 [B, T, H·S]
struct SelfAttention {
  static constexpr const char* kName = "SelfAttention";
  static constexpr ElementType kInputs[] = {kFloat, kBool, kBool};
  static constexpr ElementType kOutputs[] = {kFloat};
  AttentionAttributes attributes;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    RETURN_IF_ERROR(attributes.read(info));
    *kernel = new SelfAttention{attributes};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<float>(
        context, attributes,
        [](const Attention& attention, float* y, const ThreadPool& threads) { attention.compute(y, threads); });
  }
};

// (inputs of SelfAttention, y scale, y zero point) → y uint8 [B, T, H·S]
struct QuantizedAttention {
  static constexpr const char* kName = "QuantizedAttention";
  static constexpr ElementType kInputs[] = {kFloat, kBool, kBool, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  AttentionAttributes attributes;
  QuantParams output;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    Tensor constants[2];
    QuantParams output;
    RETURN_IF_ERROR(attributes.read(info));
    RETURN_IF_ERROR(read_constants(info, 3, constants));
    RETURN_IF_ERROR(read_quant_params(constants[0], constants[1], output));
    *kernel = new QuantizedAttention{attributes, output};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<uint8_t>(context, attributes,
                                      [&](const Attention& attention, uint8_t* y, const ThreadPool& threads) {
                                        attention.compute(y, output, threads);
                                      });
  }
};

}  // namespace bert::operators
