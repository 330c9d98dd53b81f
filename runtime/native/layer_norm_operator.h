// ONNX Runtime operators of residual + LayerNorm [+ quantization]: AddNormQuantize, AddPreNormQuantize, AddNorm and
// AddPreNorm. Kernel: layer_norm.cc.
#pragma once
#include <cmath>

#include "kernels.h"
#include "onnxruntime_tensors.h"

namespace bert::operators {

using namespace ort;

inline Status* read_epsilon(const KernelInfo* info, float& epsilon) {
  RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "epsilon", &epsilon));
  if (!(epsilon >= 0) || !std::isfinite(epsilon)) return invalid_argument("expected a finite epsilon of at least 0");
  return nullptr;
}

// (x [.., C], residual [.., C], gamma [C], beta [C], smoothing [C], scale, zero point)
// → y float32 [.., C] = LayerNorm(x + residual), quantize(y · smoothing) uint8 [.., C]; with pre-norm, the first output
// is x + residual
template <bool is_pre_norm>
struct AddNormQuantize {
  static constexpr const char* kName = is_pre_norm ? "AddPreNormQuantize" : "AddNormQuantize";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kFloat, kFloat, kFloat, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kFloat, kUint8};
  size_t columns;
  const float *gamma, *beta, *smoothing;
  QuantParams output;
  float epsilon;

  static Status* create(const KernelInfo* info, void** kernel) {
    float epsilon = 0;
    RETURN_IF_ERROR(read_epsilon(info, epsilon));
    Tensor constants[5];
    RETURN_IF_ERROR(read_constants(info, 2, constants));
    const auto& [gamma, beta, smoothing, scale, zero_point] = constants;
    QuantParams output;
    RETURN_IF_ERROR(read_quant_params(scale, zero_point, output));
    const size_t columns = gamma.last_dimension();
    for (const Tensor* vector : {&gamma, &beta, &smoothing})
      if (!columns || !vector->is_vector(columns)) return invalid_argument("expected gamma, beta and smoothing [C]");
    *kernel = new AddNormQuantize{columns, gamma.as<float>(), beta.as<float>(), smoothing.as<float>(), output, epsilon};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[2];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [x, residual] = inputs;
    if (x.last_dimension() != columns || !x.has_shape_of(residual))
      return invalid_argument("expected two tensors [.., C] of one shape");
    float* y = nullptr;
    uint8_t* quantized = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, x, &y));
    RETURN_IF_ERROR(allocate_output(context, 1, x, &quantized));
    const AddLayerNorm layer_norm = {x.size() / columns, columns, x.as<float>(), residual.as<float>(), gamma, beta,
                                     smoothing,          epsilon, is_pre_norm};
    layer_norm.compute(y, quantized, output, thread_pool(context));
    return nullptr;
  }
};

template <bool is_pre_norm>
struct AddNormOutputs {
  static constexpr ElementType kTypes[] = {kFloat};
};
template <>
struct AddNormOutputs<true> {
  static constexpr ElementType kTypes[] = {kFloat, kFloat};
};

// (x [.., C], residual [.., C], gamma [C], beta [C]) → y float32 [.., C] = LayerNorm(x + residual); with pre-norm, the
// outputs are x + residual and y
template <bool is_pre_norm>
struct AddNorm {
  static constexpr const char* kName = is_pre_norm ? "AddPreNorm" : "AddNorm";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kFloat, kFloat};
  static constexpr const auto& kOutputs = AddNormOutputs<is_pre_norm>::kTypes;
  size_t columns;
  const float *gamma, *beta;
  float epsilon;

  static Status* create(const KernelInfo* info, void** kernel) {
    float epsilon = 0;
    RETURN_IF_ERROR(read_epsilon(info, epsilon));
    Tensor constants[2];
    RETURN_IF_ERROR(read_constants(info, 2, constants));
    const auto& [gamma, beta] = constants;
    const size_t columns = gamma.last_dimension();
    if (!columns || !gamma.is_vector(columns) || !beta.is_vector(columns))
      return invalid_argument("expected gamma and beta [C]");
    *kernel = new AddNorm{columns, gamma.as<float>(), beta.as<float>(), epsilon};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[2];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [x, residual] = inputs;
    if (x.last_dimension() != columns || !x.has_shape_of(residual))
      return invalid_argument("expected two tensors [.., C] of one shape");
    float *y = nullptr, *normalized = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, x, &y));
    if (is_pre_norm) RETURN_IF_ERROR(allocate_output(context, 1, x, &normalized));
    const AddLayerNorm layer_norm = {
        x.size() / columns, columns, x.as<float>(), residual.as<float>(), gamma, beta, nullptr, epsilon, is_pre_norm};
    layer_norm.compute(y, normalized, thread_pool(context));
    return nullptr;
  }
};

}  // namespace bert::operators
