// Registers the kernels with ONNX Runtime as custom operators of the domain "bert_export".
// bert_export/kernel_functions.py defines each as an ONNX function of standard operators, which ONNX Runtime inlines
// where the operator is not registered. Compiled without special instructions, since it first checks what the processor
// supports.
#include <cstddef>
#include <iterator>

#include "attention_operators.h"
#include "cpu_features.h"
#include "layer_norm_operator.h"
#include "linear_operators.h"
#include "onnxruntime_abi.h"
#include "onnxruntime_tensors.h"

namespace {

using namespace bert::operators;

// OrtCustomOp of an operator: a struct with kName, kInputs, kOutputs, create and compute.
template <class Operator>
struct Registered : CustomOp {
  Registered() : CustomOp{} {
    version = kApiVersion;
    GetName = [](const CustomOp*) { return Operator::kName; };
    GetExecutionProviderType = [](const CustomOp*) { return "CPUExecutionProvider"; };
    GetInputType = [](const CustomOp*, size_t index) { return Operator::kInputs[index]; };
    GetInputTypeCount = [](const CustomOp*) { return sizeof Operator::kInputs / sizeof(ElementType); };
    GetOutputType = [](const CustomOp*, size_t index) { return Operator::kOutputs[index]; };
    GetOutputTypeCount = [](const CustomOp*) { return sizeof Operator::kOutputs / sizeof(ElementType); };
    GetInputCharacteristic = GetOutputCharacteristic = [](const CustomOp*, size_t) { return kRequired; };
    GetInputMemoryType = [](const CustomOp*, size_t) { return 0; };
    CreateKernelV2 = [](const CustomOp*, const Api*, const KernelInfo* info, void** kernel) {
      Status* error = Operator::create(info, kernel);
      return error || *kernel ? error : invalid_argument("out of memory");
    };
    KernelComputeV2 = [](void* kernel, KernelContext* context) {
      return static_cast<const Operator*>(kernel)->compute(context);
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
  }
};

const Registered<FloatLinear<false>> linear;
const Registered<FloatLinear<true>> linear_gelu;
const Registered<SelfAttention> self_attention;
const Registered<AddNormQuantize> add_norm_quantize;
const Registered<QuantizedAttention> quantized_attention;
const Registered<QuantizedLinear> quantized_linear;
const Registered<QuantizedLinearGelu> quantized_linear_gelu;
const CustomOp* const kOperators[] = {
    &linear,           &linear_gelu,          &self_attention, &add_norm_quantize, &quantized_attention,
    &quantized_linear, &quantized_linear_gelu};
[[maybe_unused]] constexpr size_t kInt8Matmuls = 2;  // the last of them

// Number of operators, from the first on, that this processor supports and runs faster than ONNX Runtime's own.
size_t count_operators() {
  constexpr size_t kAll = std::size(kOperators);
#if defined(BERT_AVXVNNI)
  return bert::has_avx_vnni() ? kAll : 0;
#elif defined(BERT_AVX2)
  return bert::has_avx2_and_fma() ? kAll : 0;
#else
  if (!bert::has_avx512_vnni()) return 0;
  return bert::has_amx_int8() ? kAll - kInt8Matmuls : kAll;  // with AMX tiles, ONNX Runtime's int8 matmul is faster
#endif
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Entry point of ONNX Runtime: adds the operators to a session's options.
EXPORTED Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  static Domain* domain;  // shared by all sessions, and never freed, since it must outlive them
  static Status* const error = [&]() -> Status* {
    api = base->GetApi(kApiVersion);
    RETURN_IF_ERROR(CreateCustomOpDomain(api, "bert_export", &domain));
    for (size_t index = 0; index < count_operators(); ++index)
      RETURN_IF_ERROR(CustomOpDomain_Add(api, domain, kOperators[index]));
    return nullptr;
  }();
  return error ? invalid_argument("the operator domain bert_export cannot be created")
               : AddCustomOpDomain(api, options, domain);
}

// Returns the name of the operator with this index that is registered on this processor, or null behind the last.
EXPORTED const char* KernelName(size_t index) {
  return index < count_operators() ? kOperators[index]->GetName(kOperators[index]) : nullptr;
}
