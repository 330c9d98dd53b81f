// Registers the kernels with ONNX Runtime as custom operators of the domain "bert_export".
// bert_export/kernel_functions.py defines each as an ONNX function of standard operators, which ONNX Runtime inlines
// where the operator is not registered. Compiled without special instructions, since it first checks what the processor
// supports.
#include <cstddef>
#include <iterator>

#include "attention_operators.h"
#include "cpu_features.h"
#include "disentangled_attention_operators.h"
#include "embedding_operators.h"
#include "keep_tokens_operator.h"
#include "layer_norm_operator.h"
#include "linear_operators.h"
#include "onnxruntime_abi.h"
#include "onnxruntime_tensors.h"
#include "packed_rows.h"
#include "pooling_operators.h"
#include "vocabulary_operators.h"

namespace {

using bert::BFloat16;
using namespace bert::operators;

// Returns what f returns, or an error if f throws: exceptions must not cross ONNX Runtime's C API.
template <class F>
Status* catch_exceptions(const F& f) {
  try {
    return f();
  } catch (...) {  // kernels allocate, and throw nothing else
    return CreateStatus(api, kFail, "a native kernel ran out of memory");
  }
}

// OrtCustomOp of an operator: a struct with kName, kInputs, kOutputs, create and compute.
template <class Operator>
struct Registered : CustomOp {
  Registered() : CustomOp{} {
    version = kApiVersion;
    GetName = [](const CustomOp*) { return Operator::kName; };
    GetExecutionProviderType = [](const CustomOp*) { return "CPUExecutionProvider"; };
    GetInputType = [](const CustomOp*, size_t index) { return type_of(Operator::kInputs[index]); };
    GetInputTypeCount = [](const CustomOp*) { return sizeof Operator::kInputs / sizeof(ElementType); };
    GetOutputType = [](const CustomOp*, size_t index) { return Operator::kOutputs[index]; };
    GetOutputTypeCount = [](const CustomOp*) { return sizeof Operator::kOutputs / sizeof(ElementType); };
    GetInputCharacteristic = [](const CustomOp*, size_t index) { return characteristic_of(Operator::kInputs[index]); };
    GetOutputCharacteristic = [](const CustomOp*, size_t) { return kRequired; };
    GetInputMemoryType = [](const CustomOp*, size_t) { return 0; };
    CreateKernelV2 = [](const CustomOp*, const Api*, const KernelInfo* info, void** kernel) {
      return catch_exceptions([&] { return Operator::create(info, kernel); });
    };
    KernelComputeV2 = [](void* kernel, KernelContext* context) {
      return catch_exceptions([&] { return static_cast<const Operator*>(kernel)->compute(context); });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
  }
};

template <Variant variant, bool in_bf16>
const Registered<FloatAttention<variant, in_bf16>> float_attention;
template <Variant variant>
const Registered<QuantizedAttention<variant>> quantized_attention;
template <class Weight>
const Registered<FloatLinear<false, Weight>> linear;
template <class Weight>
const Registered<FloatLinear<true, Weight>> linear_gelu;
template <Gate gate, class Weight>
const Registered<FloatLinearGated<gate, Weight>> linear_gated;
template <bool in_bf16>
const Registered<DisentangledAttention<in_bf16>> disentangled_attention;
const Registered<QuantizedDisentangledAttention> quantized_disentangled_attention;
const Registered<KeepTokensOperator> keep_tokens;
template <bool is_pre_norm>
const Registered<AddNorm<is_pre_norm>> add_norm;
const Registered<AddNormQuantize<false>> add_norm_quantize;
const Registered<AddNormQuantize<true>> add_pre_norm_quantize;
template <bool quantizes>
const Registered<EmbedNorm<quantizes>> embed_norm;
template <bool is_normalized>
const Registered<MeanPoolOperator<is_normalized>> mean_pool;
const Registered<FirstTokenAttention> first_token_attention;
const Registered<FirstRows> first_rows;
const Registered<UnpackRows> unpack_rows;
template <class Weight>
const Registered<VocabularyMax<Weight>> vocabulary_max;
const Registered<QuantizedVocabularyMax> quantized_vocabulary_max;
const Registered<QuantizedLinear> quantized_linear;
const Registered<QuantizedLinearGelu> quantized_linear_gelu;
template <Gate gate>
const Registered<QuantizedLinearGated<gate>> quantized_linear_gated;
const CustomOp* const kOperators[] = {&linear<float>,
                                      &linear_gelu<float>,
                                      &linear_gated<Gate::kGelu, float>,
                                      &linear_gated<Gate::kSilu, float>,
                                      &float_attention<Variant::kSelf, false>,
                                      &float_attention<Variant::kRelative, false>,
                                      &float_attention<Variant::kRotary, false>,
                                      &float_attention<Variant::kLocal, false>,
                                      &disentangled_attention<false>,
                                      &linear<BFloat16>,
                                      &linear_gelu<BFloat16>,
                                      &linear_gated<Gate::kGelu, BFloat16>,
                                      &linear_gated<Gate::kSilu, BFloat16>,
                                      &float_attention<Variant::kSelf, true>,
                                      &float_attention<Variant::kRelative, true>,
                                      &float_attention<Variant::kRotary, true>,
                                      &float_attention<Variant::kLocal, true>,
                                      &disentangled_attention<true>,
                                      &vocabulary_max<BFloat16>,
                                      &keep_tokens,
                                      &embed_norm<false>,
                                      &embed_norm<true>,
                                      &mean_pool<false>,
                                      &mean_pool<true>,
                                      &first_token_attention,
                                      &first_rows,
                                      &unpack_rows,
                                      &add_norm<false>,
                                      &add_norm<true>,
                                      &add_norm_quantize,
                                      &add_pre_norm_quantize,
                                      &quantized_attention<Variant::kSelf>,
                                      &quantized_attention<Variant::kRelative>,
                                      &quantized_attention<Variant::kRotary>,
                                      &quantized_attention<Variant::kLocal>,
                                      &quantized_disentangled_attention,
                                      &vocabulary_max<float>,
                                      &quantized_vocabulary_max,
                                      &quantized_linear,
                                      &quantized_linear_gelu,
                                      &quantized_linear_gated<Gate::kGelu>,
                                      &quantized_linear_gated<Gate::kSilu>};

// Number of operators that this processor supports: all or none.
size_t count_operators() {
  constexpr size_t kAll = std::size(kOperators);
#if defined(__aarch64__) && defined(BERT_BF16)
  return bert::has_bf16() ? kAll : 0;
#elif defined(BERT_I8MM)
  return bert::has_int8_matrix_product() ? kAll : 0;
#elif defined(BERT_DOTPROD)
  return bert::has_dot_product() ? kAll : 0;
#elif defined(__aarch64__)
  return kAll;
#elif defined(BERT_AVXVNNI)
  return bert::has_avx_vnni() ? kAll : 0;
#elif defined(BERT_AVX2)
  return bert::has_avx2_and_fma() ? kAll : 0;
#else
#if defined(BERT_AMX)
  return bert::has_amx() ? kAll : 0;
#elif defined(BERT_BF16)
  return bert::has_avx512_bf16() ? kAll : 0;
#else
  return bert::has_avx512_vnni() ? kAll : 0;
#endif
#endif
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Entry point of ONNX Runtime: adds the operators to a session's options.
EXPORTED Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  static Domain* domain;  // shared by all sessions, and never freed, since it must outlive them
  static const char* const error = [&]() -> const char* {
    api = base->GetApi(kApiVersion);
    if (!api) return "the native kernels need ONNX Runtime 1.17 or newer";
    bool failed = CreateCustomOpDomain(api, "bert_export", &domain);
    for (size_t index = 0; !failed && index < count_operators(); ++index)
      failed = CustomOpDomain_Add(api, domain, kOperators[index]);
    return failed ? "the operator domain bert_export cannot be created" : nullptr;
  }();
  if (!error) return AddCustomOpDomain(api, options, domain);
  const Api* any_version = api ? api : base->GetApi(1);  // CreateStatus is in all of them
  return any_version ? CreateStatus(any_version, kFail, error) : nullptr;
}

// Returns the name of the operator with this index that is registered on this processor, or null behind the last.
EXPORTED const char* KernelName(size_t index) {
  return index < count_operators() ? kOperators[index]->GetName(kOperators[index]) : nullptr;
}
