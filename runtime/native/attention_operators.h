// ONNX Runtime operators of multi-head self-attention: SelfAttention, RelativeAttention, RotaryAttention and
// LocalAttention (float32), the same with matmuls of bfloat16, Bf16SelfAttention and so on, and the same with uint8
// output, QuantizedAttention, QuantizedRelativeAttention and so on.
// Kernels: float_attention.cc, quantized_attention.cc.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "kernels.h"
#include "onnxruntime_tensors.h"
#include "packed_rows.h"
#include "scratch.h"

namespace bert::operators {

using namespace ort;

// What an operator adds to SelfAttention.
enum class Variant {
  kSelf,
  kRelative,  // a bias by the distance from query to key
  kRotary,    // queries and keys are rotated, and the mask is one of keys
  kLocal      // kRotary with a window
};
constexpr bool is_rotary(Variant variant) { return variant == Variant::kRotary || variant == Variant::kLocal; }

struct AttentionAttributes {
  size_t num_heads, window;
  float scale;

  Status* read(const KernelInfo* info, Variant variant) {
    int64_t heads = 0, distance = 0;
    RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "num_heads", &heads));
    RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "scale", &scale));
    if (heads < 1 || !(scale > 0) || !std::isfinite(scale))
      return invalid_argument("expected num_heads of at least 1, and a finite scale above 0");
    if (variant == Variant::kLocal) {
      RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "window", &distance));
      if (distance < 1 || distance > INT32_MAX) return invalid_argument("expected a window of 1 to 2147483647");
    }
    num_heads = static_cast<size_t>(heads);
    window = static_cast<size_t>(distance);
    return nullptr;
  }
};

// Which keys queries attend to: null for all of them, else bytes [B, 1, rows, T], rows 1 or T.
struct MaskRows {
  const uint8_t* values;
  size_t rows;
};

// Reads a mask bool [B, T] or [B, 1, T, T], or int64 [B, T], 0 at padding, whose bytes are a thread's memory. A flag
// that is not left out says whether all of the mask is true: bundles from before 0.1.0 have it.
inline Status* read_mask(const Tensor& mask, const Tensor& is_full, int64_t batch, int64_t tokens, MaskRows& rows) {
  if (is_full.is_given() && is_full.size() != 1)
    return invalid_argument("expected one flag that says whether the mask is full");
  const bool is_of_keys = mask.has_shape({batch, tokens});
  if ((mask.type != kBool && mask.type != kInt64) || (mask.type == kInt64 && !is_of_keys))
    return invalid_argument("expected a mask of bool, or of int64 [B, T]");
  if (!is_of_keys && !mask.has_shape({batch, 1, tokens, tokens}))
    return invalid_argument("expected a mask [B, T] or [B, 1, T, T]");
  rows = {mask.as<uint8_t>(), is_of_keys ? 1 : static_cast<size_t>(tokens)};
  if (mask.type == kInt64) {
    static thread_local Scratch scratch;
    const size_t count = mask.size();
    uint8_t* bytes = scratch.reserve(count);
    std::transform(mask.as<int64_t>(), mask.as<int64_t>() + count, bytes, [](int64_t value) { return value != 0; });
    rows.values = bytes;
  }
  if (is_full.is_given() && *is_full.as<uint8_t>()) rows.values = nullptr;
  return nullptr;
}

constexpr int64_t kMaxQuantizedTokens = 1 << 18;  // a probability is 1.5 steps then, if all are equal

// Reads the inputs (qkv, mask, is_full, and those of the variant), allocates the output y, and calls
// compute(attention, y, thread pool).
template <class Output, Variant variant, class Compute>
Status* compute_attention(KernelContext* context, const AttentionAttributes& attributes, const Compute& compute) {
  Tensor inputs[3], bias, cos, sin;
  RETURN_IF_ERROR(read_inputs(context, inputs));
  const auto& [qkv, mask, is_full] = inputs;
  const size_t num_heads = attributes.num_heads, width = qkv.last_dimension() / 3;
  if (qkv.rank != 3 || !width || qkv.last_dimension() % 3 || width % num_heads)
    return invalid_argument("expected queries, keys and values [B, T, 3·num_heads·S], S above 0");
  SequenceRows rows = {};
  RETURN_IF_ERROR(read_sequence_rows(qkv, mask, rows));
  const auto batch = static_cast<int64_t>(rows.batch), tokens = static_cast<int64_t>(rows.tokens);
  if (std::is_same_v<Output, uint8_t> && tokens > kMaxQuantizedTokens)
    return invalid_argument("expected at most 262144 tokens for int16 probabilities");
  const size_t head_size = width / num_heads;
  if constexpr (is_rotary(variant)) {
    RETURN_IF_ERROR(read_input(context, 3, cos));
    RETURN_IF_ERROR(read_input(context, 4, sin));
    if (mask.rank != 2) return invalid_argument("expected a mask [B, T]");
    if (head_size % 2 || cos.rank != 2 || cos.last_dimension() != head_size / 2 || cos.dimensions[0] < tokens ||
        !cos.has_shape_of(sin) || sin.rank != 2)
      return invalid_argument("expected an even S, and cosines and sines [positions, S / 2] of at least T positions");
  }
  MaskRows mask_rows = {};
  // Of packed rows, sequences are as long as the mask says, whatever the flag says.
  RETURN_IF_ERROR(read_mask(mask, rows.starts ? Tensor{} : is_full, batch, tokens, mask_rows));
  if constexpr (variant == Variant::kRelative) {
    RETURN_IF_ERROR(read_input(context, 3, bias));
    if (!bias.has_shape({static_cast<int64_t>(num_heads), std::max<int64_t>(0, 2 * tokens - 1)}))
      return invalid_argument("expected a bias [num_heads, 2·T - 1]");
  }
  const Attention attention = {rows,
                               num_heads,
                               head_size,
                               attributes.scale,
                               qkv.as<float>(),
                               mask_rows.values,
                               mask_rows.rows,
                               bias.as<float>(),
                               {cos.as<float>(), sin.as<float>()},
                               attributes.window};
  Tensor like = qkv;
  like.dimensions[2] = static_cast<int64_t>(width);
  Output* y = nullptr;
  RETURN_IF_ERROR(allocate_output(context, 0, like, &y));
  compute(attention, y, thread_pool(context));
  return nullptr;
}

// Names and inputs of the operators. A position bias is float32 [H, 2·T - 1], cosines and sines are float32
// [positions, S / 2].
template <Variant variant>
struct AttentionInputs {
  static constexpr const char *kName = "SelfAttention", *kBf16Name = "Bf16SelfAttention",
                              *kQuantizedName = "QuantizedAttention";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType, optional(kBool)};
  static constexpr ElementType kQuantizedInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kUint8};
};
template <>
struct AttentionInputs<Variant::kRelative> {
  static constexpr const char *kName = "RelativeAttention", *kBf16Name = "Bf16RelativeAttention",
                              *kQuantizedName = "QuantizedRelativeAttention";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType, optional(kBool), kFloat};
  static constexpr ElementType kQuantizedInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kFloat, kUint8};
};
template <>
struct AttentionInputs<Variant::kRotary> {
  static constexpr const char *kName = "RotaryAttention", *kBf16Name = "Bf16RotaryAttention",
                              *kQuantizedName = "QuantizedRotaryAttention";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kFloat};
  static constexpr ElementType kQuantizedInputs[] = {kFloat, kAnyType, optional(kBool), kFloat, kFloat, kFloat, kUint8};
};
template <>
struct AttentionInputs<Variant::kLocal> : AttentionInputs<Variant::kRotary> {
  static constexpr const char *kName = "LocalAttention", *kBf16Name = "Bf16LocalAttention",
                              *kQuantizedName = "QuantizedLocalAttention";
};

// Computes attention, in bfloat16 if the library has its dot products.
template <bool in_bf16>
void compute_floats(const Attention& attention, float* y, const ThreadPool& threads,
                    const PositionTables<float>* tables = nullptr) {
#ifdef BERT_BF16
  if constexpr (in_bf16) return attention.compute_bf16(y, threads, tables);
#endif
  attention.compute(y, threads, tables);
}

// (qkv float32 [B, T, 3·H·S], mask and is_full of read_mask, inputs of the variant) → y float32 [B, T, H·S]
template <Variant variant, bool in_bf16>
struct FloatAttention {
  static constexpr const char* kName = in_bf16 ? AttentionInputs<variant>::kBf16Name : AttentionInputs<variant>::kName;
  static constexpr const auto& kInputs = AttentionInputs<variant>::kInputs;
  static constexpr ElementType kOutputs[] = {kFloat};
  AttentionAttributes attributes;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    RETURN_IF_ERROR(attributes.read(info, variant));
    *kernel = new FloatAttention{attributes};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<float, variant>(context, attributes,
                                             [](const Attention& attention, float* y, const ThreadPool& threads) {
                                               compute_floats<in_bf16>(attention, y, threads);
                                             });
  }
};

// (inputs of FloatAttention, y scale, y zero point) → y uint8 [B, T, H·S]
template <Variant variant>
struct QuantizedAttention {
  static constexpr const char* kName = AttentionInputs<variant>::kQuantizedName;
  static constexpr const auto& kInputs = AttentionInputs<variant>::kQuantizedInputs;
  static constexpr ElementType kOutputs[] = {kUint8};
  AttentionAttributes attributes;
  QuantParams output;

  static Status* create(const KernelInfo* info, void** kernel) {
    AttentionAttributes attributes;
    Tensor constants[2];
    QuantParams output;
    RETURN_IF_ERROR(attributes.read(info, variant));
    RETURN_IF_ERROR(read_constants(info, std::size(AttentionInputs<variant>::kInputs), constants));
    RETURN_IF_ERROR(read_quant_params(constants[0], constants[1], output));
    *kernel = new QuantizedAttention{attributes, output};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_attention<uint8_t, variant>(context, attributes,
                                               [&](const Attention& attention, uint8_t* y, const ThreadPool& threads) {
                                                 attention.compute(y, output, threads);
                                               });
  }
};

}  // namespace bert::operators
