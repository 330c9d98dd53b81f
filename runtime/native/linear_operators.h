// ONNX Runtime operators of the linear layers, matmul + bias [+ GELU]: QuantizedLinear, QuantizedLinearGelu, Linear and
// LinearGelu; and those of gated ones, activation(gate) · up: QuantizedLinearGatedGelu, LinearGatedGelu, and
// the same with Silu. Bf16Linear and so on have bfloat16 weights. Kernels: gemm.cc.
#pragma once
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "onnxruntime_tensors.h"

namespace bert::operators {

using namespace ort;

using bert::Gate;
using Int8Linear = bert::Linear<uint8_t, int8_t>;

// Makes an Int8Linear from the constants (weight [K, N], x scale, weight scales [N], x zero point, bias [N], …), in
// units of `output_scale`, and with it an operator: *kernel = make(linear).
template <class Make>
Status* create_int8_linear(const Tensor* constants, float output_scale, void** kernel, const Make& make) {
  const Tensor &weight = constants[0], &scales = constants[2], &bias = constants[4];
  const size_t out_features = weight.last_dimension();
  QuantParams input;
  RETURN_IF_ERROR(read_quant_params(constants[1], constants[3], input));
  if (weight.rank != 2 || !weight.size() || weight.dimensions[0] % 4 || !scales.is_vector(out_features) ||
      !bias.is_vector(out_features))
    return invalid_argument("expected a weight [K, N] with K a multiple of 4, and N scales and biases");
  if (weight.dimensions[0] > static_cast<int64_t>(kMaxInt8InFeatures))
    return invalid_argument("expected an int8 weight [K, N] with K up to 65,793, so that no sum overflows int32");
  *kernel = make(Int8Linear(weight.as<int8_t>(), scales.as<float>(), bias.as<float>(),
                            static_cast<size_t>(weight.dimensions[0]), out_features, input, output_scale));
  return nullptr;
}

// Columns of a tensor [rows, 2 · columns] in the order of GatedColumns, with 0 for padding.
template <class T>
std::vector<T> interleave(const T* values, size_t rows, GatedColumns order) {
  const size_t count = order.count();
  std::vector<T> interleaved(rows * count);
  for (size_t column = 0; column < count; ++column) {
    const ptrdiff_t source = order.source(column);
    for (size_t row = 0; row < rows && source >= 0; ++row)
      interleaved[row * count + column] = values[row * 2 * order.columns + source];
  }
  return interleaved;
}

// Reads the input x [.., K], allocates the output y [.., N], and calls compute(x, rows, y, thread pool).
template <class Output, class Input, class Weight, class Compute>
Status* compute_linear(KernelContext* context, const bert::Linear<Input, Weight>& linear, size_t columns,
                       const Compute& compute) {
  Tensor x;
  RETURN_IF_ERROR(read_input(context, 0, x));
  if (!x.rank || x.last_dimension() != linear.in_features())
    return invalid_argument("expected an input [.., K] for a weight [K, N]");
  const size_t rows = x.size() / linear.in_features();
  x.dimensions[x.rank - 1] = static_cast<int64_t>(columns);
  Output* y = nullptr;
  RETURN_IF_ERROR(allocate_output(context, 0, x, &y));
  compute(x.as<Input>(), rows, y, thread_pool(context));
  return nullptr;
}

// (x uint8 [.., K], weight int8 [K, N], x scale, weight scales [N], x zero point, bias [N]) → y float32 [.., N]
struct QuantizedLinear {
  static constexpr const char* kName = "QuantizedLinear";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  Int8Linear linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[5];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    return create_int8_linear(constants, 1, kernel,
                              [](Int8Linear&& linear) { return new QuantizedLinear{std::move(linear)}; });
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<float>(
        context, linear, linear.out_features(),
        [&](const uint8_t* x, size_t rows, float* y, ThreadPool threads) { linear.matmul(x, rows, y, threads); });
  }
};

// (inputs of QuantizedLinear, y scale, y zero point) → y uint8 [.., N] = quantize(GELU(QuantizedLinear))
struct QuantizedLinearGelu {
  static constexpr const char* kName = "QuantizedLinearGelu";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  Int8Linear linear;
  QuantizedGelu gelu;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[7];
    QuantParams output;
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    RETURN_IF_ERROR(read_quant_params(constants[5], constants[6], output));
    return create_int8_linear(constants, output.scale, kernel, [&](Int8Linear&& linear) {
      return new QuantizedLinearGelu{std::move(linear), QuantizedGelu(output)};
    });
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<uint8_t>(context, linear, linear.out_features(),
                                   [&](const uint8_t* x, size_t rows, uint8_t* y, ThreadPool threads) {
                                     linear.matmul_gelu(x, rows, y, gelu, threads);
                                   });
  }
};

// Linear layers of float32 inputs. Libraries without dot products of bfloat16 multiply by such weights in float32.
#ifdef BERT_BF16
template <class Weight>
using FloatInputLinear = bert::Linear<float, Weight>;
#else
template <class Weight>
using FloatInputLinear = bert::Linear<float, float>;
#endif

template <class Weight>
constexpr bool kIsBf16 = std::is_same_v<Weight, BFloat16>;
template <class Weight>
constexpr ElementType kElementType = kIsBf16<Weight> ? kBFloat16 : kFloat;

#ifndef BERT_BF16
inline std::vector<float> widen(const BFloat16* values, size_t count) {
  std::vector<float> widened(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{values[i].bits} << 16;
    std::memcpy(&widened[i], &bits, sizeof bits);
  }
  return widened;
}
#endif

// Makes a FloatInputLinear of a weight [in_features, out_features].
template <class Weight>
FloatInputLinear<Weight> make_float_linear(const Weight* weight, const float* bias, size_t in_features,
                                           size_t out_features) {
#ifndef BERT_BF16
  if constexpr (kIsBf16<Weight>) {
    const std::vector<float> widened = widen(weight, in_features * out_features);
    release_mapped_pages(weight, in_features * out_features * sizeof(Weight));
    return {widened.data(), nullptr, bias, in_features, out_features};
  } else
#endif
    return {weight, nullptr, bias, in_features, out_features};
}

// (x float32 [.., K], weight float32 or bfloat16 [K, N], bias [N]) → y float32 [.., N]
template <bool with_gelu, class Weight>
struct FloatLinear {
  static constexpr const char* kName =
      kIsBf16<Weight> ? (with_gelu ? "Bf16LinearGelu" : "Bf16Linear") : (with_gelu ? "LinearGelu" : "Linear");
  static constexpr ElementType kInputs[] = {kFloat, kElementType<Weight>, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  FloatInputLinear<Weight> linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[2];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    const auto& [weight, bias] = constants;
    if (weight.rank != 2 || !weight.size() || !bias.is_vector(weight.last_dimension()))
      return invalid_argument("expected a weight [K, N], and N biases");
    *kernel = new FloatLinear{make_float_linear(weight.as<Weight>(), bias.as<float>(),
                                                static_cast<size_t>(weight.dimensions[0]), weight.last_dimension())};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<float>(context, linear, linear.out_features(),
                                 [&](const float* x, size_t rows, float* y, ThreadPool threads) {
                                   if constexpr (with_gelu)
                                     linear.matmul_gelu(x, rows, y, threads);
                                   else
                                     linear.matmul(x, rows, y, threads);
                                 });
  }
};

// (inputs of QuantizedLinear with weight [K, 2·N], y scale, y zero point) → y uint8 [.., N] =
// quantize(activation(gate) · up)
template <Gate gate>
struct QuantizedLinearGated {
  static constexpr const char* kName = gate == Gate::kGelu ? "QuantizedLinearGatedGelu" : "QuantizedLinearGatedSilu";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  Int8Linear linear;
  size_t columns;
  QuantParams output;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[7];
    QuantParams output;
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    RETURN_IF_ERROR(read_quant_params(constants[5], constants[6], output));
    Tensor &weight = constants[0], &scales = constants[2], &bias = constants[4];
    const size_t width = weight.last_dimension();
    if (weight.rank != 2 || width % 2 || !scales.is_vector(width) || !bias.is_vector(width))
      return invalid_argument("expected a weight [K, 2·N], and 2·N scales and biases");
    const GatedColumns order = {width / 2};
    auto weights = interleave(weight.as<int8_t>(), static_cast<size_t>(weight.dimensions[0]), order);
    auto scale = interleave(scales.as<float>(), 1, order), offset = interleave(bias.as<float>(), 1, order);
    release_mapped_pages(weight.data, weight.size());
    weight.data = weights.data();
    scales.data = scale.data();
    bias.data = offset.data();
    weight.dimensions[1] = scales.dimensions[0] = bias.dimensions[0] = static_cast<int64_t>(order.count());
    return create_int8_linear(constants, 1, kernel, [&](Int8Linear&& linear) {
      return new QuantizedLinearGated{std::move(linear), order.columns, output};
    });
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<uint8_t>(context, linear, columns,
                                   [&](const uint8_t* x, size_t rows, uint8_t* y, ThreadPool threads) {
                                     linear.matmul_gated(gate, x, rows, columns, y, output, threads);
                                   });
  }
};

// (x float32 [.., K], weight float32 or bfloat16 [K, 2·N], bias [2·N]) → y float32 [.., N] = activation(gate) · up
template <Gate gate, class Weight>
struct FloatLinearGated {
  static constexpr const char* kName = gate == Gate::kGelu
                                           ? (kIsBf16<Weight> ? "Bf16LinearGatedGelu" : "LinearGatedGelu")
                                           : (kIsBf16<Weight> ? "Bf16LinearGatedSilu" : "LinearGatedSilu");
  static constexpr ElementType kInputs[] = {kFloat, kElementType<Weight>, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  FloatInputLinear<Weight> linear;
  size_t columns;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[2];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    const auto& [weight, bias] = constants;
    const size_t width = weight.last_dimension();
    if (weight.rank != 2 || !weight.size() || width % 2 || !bias.is_vector(width))
      return invalid_argument("expected a weight [K, 2·N], and 2·N biases");
    const GatedColumns order = {width / 2};
    const auto in_features = static_cast<size_t>(weight.dimensions[0]);
    const auto weights = interleave(weight.as<Weight>(), in_features, order);
    const auto offset = interleave(bias.as<float>(), 1, order);
    release_mapped_pages(weight.data, weight.size() * sizeof(Weight));
    *kernel = new FloatLinearGated{make_float_linear(weights.data(), offset.data(), in_features, order.count()),
                                   order.columns};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<float>(context, linear, columns,
                                 [&](const float* x, size_t rows, float* y, ThreadPool threads) {
                                   linear.matmul_gated(gate, x, rows, columns, y, threads);
                                 });
  }
};

}  // namespace bert::operators
