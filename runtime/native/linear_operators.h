// ONNX Runtime operators of the linear layers, matmul + bias [+ GELU]: QuantizedLinear, QuantizedLinearGelu, Linear and
// LinearGelu. Kernels: gemm.cc.
#pragma once
#include <utility>

#include "kernels.h"
#include "onnxruntime_tensors.h"

namespace bert::operators {

using namespace ort;

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

// Reads the input x [.., K], allocates the output y [.., N], and calls compute(x, rows, y, thread pool).
template <class Output, class Input, class Weight, class Compute>
Status* compute_linear(KernelContext* context, const bert::Linear<Input, Weight>& linear, const Compute& compute) {
  Tensor x;
  RETURN_IF_ERROR(read_input(context, 0, x));
  if (!x.rank || x.last_dimension() != linear.in_features())
    return invalid_argument("expected an input [.., K] for a weight [K, N]");
  const size_t rows = x.size() / linear.in_features();
  x.dimensions[x.rank - 1] = static_cast<int64_t>(linear.out_features());
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
    return compute_linear<float>(context, linear, [&](const uint8_t* x, size_t rows, float* y, ThreadPool threads) {
      linear.matmul(x, rows, y, threads);
    });
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
    return compute_linear<uint8_t>(context, linear, [&](const uint8_t* x, size_t rows, uint8_t* y, ThreadPool threads) {
      linear.matmul_gelu(x, rows, y, gelu, threads);
    });
  }
};

// (x float32 [.., K], weight float32 [K, N], bias [N]) → y float32 [.., N]
template <bool with_gelu>
struct FloatLinear {
  static constexpr const char* kName = with_gelu ? "LinearGelu" : "Linear";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  bert::Linear<float, float> linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor constants[2];
    RETURN_IF_ERROR(read_constants(info, 1, constants));
    const auto& [weight, bias] = constants;
    if (weight.rank != 2 || !weight.size() || !bias.is_vector(weight.last_dimension()))
      return invalid_argument("expected a weight [K, N], and N biases");
    *kernel = new FloatLinear{{weight.as<float>(), nullptr, bias.as<float>(), static_cast<size_t>(weight.dimensions[0]),
                               weight.last_dimension()}};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    return compute_linear<float>(context, linear, [&](const float* x, size_t rows, float* y, ThreadPool threads) {
      if constexpr (with_gelu)
        linear.matmul_gelu(x, rows, y, threads);
      else
        linear.matmul(x, rows, y, threads);
    });
  }
};

}  // namespace bert::operators
