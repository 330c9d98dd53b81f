// The kernels as operators of ONNX Runtime, in the domain of the functions that say the same in standard operators
// (bert_export/kernel_functions.py). Only what this processor can run, and runs fastest, is registered; ONNX Runtime takes the
// functions for the rest.
#include <cpuid.h>

#include <new>

#include "kernels.h"
#include "onnxruntime_abi.h"

namespace {

using bert::Range;
using namespace ort;

const Api* api;

// Leaves the function with the error of an expression, if it has one.
#define RETURN_IF_ERROR(expression) \
  if (Status* error = (expression)) return error

Status* invalid(const char* message) { return CreateStatus(api, kInvalidArgument, message); }

struct Tensor {
  void* data = nullptr;
  int64_t dimensions[8];
  size_t rank = 0;

  Status* read(const Value* value) {
    RETURN_IF_ERROR(GetTensorMutableData(api, const_cast<Value*>(value), &data));
    Shape* shape;
    RETURN_IF_ERROR(GetTensorTypeAndShape(api, value, &shape));
    Status* error = GetDimensionsCount(api, shape, &rank);
    if (!error) error = rank <= 8 ? GetDimensions(api, shape, dimensions, rank) : invalid("a tensor of more than 8 axes");
    ReleaseTensorTypeAndShapeInfo(api, shape);
    return error;
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  size_t size() const {
    size_t product = 1;
    for (size_t axis = 0; axis < rank; ++axis) product *= static_cast<size_t>(dimensions[axis]);
    return product;
  }
  size_t last() const { return rank ? static_cast<size_t>(dimensions[rank - 1]) : 0; }
  bool has_shape_of(const Tensor& other) const {
    bool same = rank == other.rank;
    for (size_t axis = 0; same && axis < rank; ++axis) same = dimensions[axis] == other.dimensions[axis];
    return same;
  }
  bool is_vector(size_t size) const { return rank == 1 && last() == size; }
};

Status* read_range(const Tensor& scale, const Tensor& zero_point, Range& range) {
  if (scale.size() != 1 || zero_point.size() != 1) return invalid("expected one scale and one zero point");
  range = {*scale.as<float>(), *zero_point.as<uint8_t>()};
  return nullptr;
}

Status* input(KernelContext* context, size_t index, Tensor& tensor) {
  const Value* value;
  RETURN_IF_ERROR(KernelContext_GetInput(api, context, index, &value));
  return tensor.read(value);
}

template <size_t Count>
Status* inputs(KernelContext* context, Tensor (&tensors)[Count]) {
  for (size_t index = 0; index < Count; ++index) RETURN_IF_ERROR(input(context, index, tensors[index]));
  return nullptr;
}

template <class T>
Status* output(KernelContext* context, size_t index, const Tensor& like, T** data) {
  Value* value;
  RETURN_IF_ERROR(KernelContext_GetOutput(api, context, index, like.dimensions, like.rank, &value));
  return GetTensorMutableData(api, value, reinterpret_cast<void**>(data));
}

bert::Threads threads_of(KernelContext* context) {
  return {context, [](void* context, bert::Job job, void* state, size_t count) {
            if (count == 1)
              job(state, 0);
            else  // fails for null arguments alone
              KernelContext_ParallelFor(api, static_cast<KernelContext*>(context), job, count, 0, state);
          }};
}

// The constants that follow the first input.
template <size_t Count>
Status* constants(const KernelInfo* info, Tensor (&tensors)[Count]) {
  for (size_t index = 0; index < Count; ++index) {
    int is_constant = 0;
    const Value* value = nullptr;
    RETURN_IF_ERROR(KernelInfoGetConstantInput_tensor(api, info, 1 + index, &is_constant, &value));
    if (!is_constant) return invalid("expected a weight, scales, zero points and a bias that are constants");
    RETURN_IF_ERROR(tensors[index].read(value));
  }
  return nullptr;
}

// Whether (weight [K, N], x scale, weight's scales [N], x zero point, bias [N]) are what a Linear is made of; its range.
Status* check_linear(const Tensor* tensors, Range& range) {
  const Tensor &weight = tensors[0], &scales = tensors[2], &bias = tensors[4];
  RETURN_IF_ERROR(read_range(tensors[1], tensors[3], range));
  if (weight.rank != 2 || !weight.size() || weight.dimensions[0] % 4 || !scales.is_vector(weight.last()) ||
      !bias.is_vector(weight.last()))
    return invalid("expected a weight [K, N] with K a multiple of 4, and N scales and biases");
  return nullptr;
}

using BytesLinear = bert::Linear<uint8_t, int8_t>;
BytesLinear linear_of(const Tensor* tensors, Range range, float unit = 1) {
  return {tensors[0].as<int8_t>(), tensors[2].as<float>(), tensors[4].as<float>(),
          static_cast<size_t>(tensors[0].dimensions[0]), tensors[0].last(), range, unit};
}

// The input x of a Linear, with the dimensions of its output.
template <class L>
Status* linear_input(KernelContext* context, const L& linear, Tensor& x, size_t& rows) {
  RETURN_IF_ERROR(input(context, 0, x));
  if (!x.rank || x.last() != linear.inputs()) return invalid("expected an input [.., K] for a weight [K, N]");
  rows = x.size() / linear.inputs();
  x.dimensions[x.rank - 1] = static_cast<int64_t>(linear.outputs());
  return nullptr;
}

// (x bytes [.., K], weight [K, N], x scale, weight's scales [N], x zero point, bias [N]) → float [.., N]
struct QuantizedLinear {
  static constexpr const char* kName = "QuantizedLinear";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  BytesLinear linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor tensors[5];
    Range range;
    RETURN_IF_ERROR(constants(info, tensors));
    RETURN_IF_ERROR(check_linear(tensors, range));
    *kernel = new (std::nothrow) QuantizedLinear{linear_of(tensors, range)};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor x;
    size_t rows;
    float* y;
    RETURN_IF_ERROR(linear_input(context, linear, x, rows));
    RETURN_IF_ERROR(output(context, 0, x, &y));
    linear.run(x.as<uint8_t>(), rows, y, threads_of(context));
    return nullptr;
  }
};

// QuantizedLinear and GELU: (those, y scale, y zero point) → bytes [.., N]
struct QuantizedLinearGelu {
  static constexpr const char* kName = "QuantizedLinearGelu";
  static constexpr ElementType kInputs[] = {kUint8, kInt8, kFloat, kFloat, kUint8, kFloat, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  BytesLinear linear;
  bert::Gelu gelu;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor tensors[7];
    Range range, output;
    RETURN_IF_ERROR(constants(info, tensors));
    RETURN_IF_ERROR(check_linear(tensors, range));
    RETURN_IF_ERROR(read_range(tensors[5], tensors[6], output));
    *kernel = new (std::nothrow) QuantizedLinearGelu{linear_of(tensors, range, output.scale), bert::Gelu(output)};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor x;
    size_t rows;
    uint8_t* y;
    RETURN_IF_ERROR(linear_input(context, linear, x, rows));
    RETURN_IF_ERROR(output(context, 0, x, &y));
    linear.run_gelu(x.as<uint8_t>(), rows, y, gelu, threads_of(context));
    return nullptr;
  }
};

// (x [.., K], weight [K, N], bias [N]) → [.., N], with GELU or without.
template <bool with_gelu>
struct FloatLinear {
  static constexpr const char* kName = with_gelu ? "LinearGelu" : "Linear";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kFloat};
  static constexpr ElementType kOutputs[] = {kFloat};
  bert::Linear<float, float> linear;

  static Status* create(const KernelInfo* info, void** kernel) {
    Tensor tensors[2];
    RETURN_IF_ERROR(constants(info, tensors));
    const auto& [weight, bias] = tensors;
    if (weight.rank != 2 || !weight.size() || !bias.is_vector(weight.last()))
      return invalid("expected a weight [K, N], and N biases");
    *kernel = new (std::nothrow) FloatLinear{{weight.as<float>(), nullptr, bias.as<float>(),
                                              static_cast<size_t>(weight.dimensions[0]), weight.last()}};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor x;
    size_t rows;
    float* y;
    RETURN_IF_ERROR(linear_input(context, linear, x, rows));
    RETURN_IF_ERROR(output(context, 0, x, &y));
    if (with_gelu)
      linear.run_gelu(x.as<float>(), rows, y, threads_of(context));
    else
      linear.run(x.as<float>(), rows, y, threads_of(context));
    return nullptr;
  }
};

struct Heads {
  size_t count;
  float scale;

  Status* read(const KernelInfo* info) {
    int64_t heads;
    RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "num_heads", &heads));
    RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "scale", &scale));
    if (heads < 1 || !(scale > 0)) return invalid("expected at least one head, and a scale above 0");
    count = static_cast<size_t>(heads);
    return nullptr;
  }

  // What to compute of inputs, the first of which gets the dimensions of the output.
  Status* read(Tensor& qkv, const Tensor& mask, const Tensor& is_full, bert::Attention& attention) const {
    if (is_full.size() != 1) return invalid("expected one flag for a mask that leaves nothing out");
    if (qkv.rank != 3 || qkv.last() % (3 * count)) return invalid("expected queries, keys and values [B, T, 3·heads·S]");
    const size_t batch = static_cast<size_t>(qkv.dimensions[0]), tokens = static_cast<size_t>(qkv.dimensions[1]);
    if (mask.size() != batch * tokens * tokens) return invalid("expected a mask [B, 1, T, T]");
    const size_t width = qkv.last() / 3;
    qkv.dimensions[2] = static_cast<int64_t>(width);
    attention = {batch, tokens, count, width / count, scale, qkv.as<float>(),
                 *is_full.as<bool>() ? nullptr : mask.as<bool>()};
    return nullptr;
  }
};

// (qkv [B, T, 3·H·S], mask [B, 1, T, T], whether the mask leaves nothing out) → [B, T, H·S]
struct SelfAttention {
  static constexpr const char* kName = "SelfAttention";
  static constexpr ElementType kInputs[] = {kFloat, kBool, kBool};
  static constexpr ElementType kOutputs[] = {kFloat};
  Heads heads;

  static Status* create(const KernelInfo* info, void** kernel) {
    Heads heads;
    RETURN_IF_ERROR(heads.read(info));
    *kernel = new (std::nothrow) SelfAttention{heads};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor tensors[3];
    bert::Attention attention;
    float* y;
    RETURN_IF_ERROR(inputs(context, tensors));
    RETURN_IF_ERROR(heads.read(tensors[0], tensors[1], tensors[2], attention));
    RETURN_IF_ERROR(output(context, 0, tensors[0], &y));
    attention.run(y, threads_of(context));
    return nullptr;
  }
};

// (those, y scale, y zero point) → bytes [B, T, H·S]
struct QuantizedAttention {
  static constexpr const char* kName = "QuantizedAttention";
  static constexpr ElementType kInputs[] = {kFloat, kBool, kBool, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kUint8};
  Heads heads;

  static Status* create(const KernelInfo* info, void** kernel) {
    Heads heads;
    RETURN_IF_ERROR(heads.read(info));
    *kernel = new (std::nothrow) QuantizedAttention{heads};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor tensors[5];
    Range range;
    bert::Attention attention;
    uint8_t* y;
    RETURN_IF_ERROR(inputs(context, tensors));
    RETURN_IF_ERROR(read_range(tensors[3], tensors[4], range));
    RETURN_IF_ERROR(heads.read(tensors[0], tensors[1], tensors[2], attention));
    RETURN_IF_ERROR(output(context, 0, tensors[0], &y));
    attention.run(y, range, threads_of(context));
    return nullptr;
  }
};

// (x [.., C], residual [.., C], gamma [C], beta [C], smoothing [C], scale, zero point) → y [.., C], y times the smoothing
// as bytes [.., C]
struct AddNormQuantize {
  static constexpr const char* kName = "AddNormQuantize";
  static constexpr ElementType kInputs[] = {kFloat, kFloat, kFloat, kFloat, kFloat, kFloat, kUint8};
  static constexpr ElementType kOutputs[] = {kFloat, kUint8};
  float epsilon;

  static Status* create(const KernelInfo* info, void** kernel) {
    float epsilon;
    RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "epsilon", &epsilon));
    *kernel = new (std::nothrow) AddNormQuantize{epsilon};
    return nullptr;
  }

  Status* run(KernelContext* context) const {
    Tensor tensors[7];
    RETURN_IF_ERROR(inputs(context, tensors));
    const auto& [x, residual, gamma, beta, smoothing, scale, zero_point] = tensors;
    const size_t columns = x.last();
    Range range;
    RETURN_IF_ERROR(read_range(scale, zero_point, range));
    if (!columns || !x.has_shape_of(residual) || !gamma.is_vector(columns) || !beta.is_vector(columns) ||
        !smoothing.is_vector(columns))
      return invalid("expected two tensors [.., C] of one shape, and three [C]");
    float* y;
    uint8_t* bytes;
    RETURN_IF_ERROR(output(context, 0, x, &y));
    RETURN_IF_ERROR(output(context, 1, x, &bytes));
    bert::AddNorm{x.size() / columns,   columns,           x.as<float>(),         residual.as<float>(),
                  gamma.as<float>(),    beta.as<float>(),  smoothing.as<float>(), epsilon}
        .run(y, bytes, range, threads_of(context));
    return nullptr;
  }
};

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
      return error || *kernel ? error : invalid("out of memory");
    };
    KernelComputeV2 = [](void* kernel, KernelContext* context) {
      return static_cast<const Operator*>(kernel)->run(context);
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
  }
};

const Registered<FloatLinear<false>> float_linear;
const Registered<FloatLinear<true>> float_linear_gelu;
const Registered<SelfAttention> float_attention;
const Registered<AddNormQuantize> add_norm;
const Registered<QuantizedAttention> attention;
const Registered<QuantizedLinear> linear;
const Registered<QuantizedLinearGelu> linear_gelu;
const CustomOp* const kOperators[] = {&float_linear, &float_linear_gelu, &float_attention, &add_norm,
                                      &attention,    &linear,            &linear_gelu};

// How many of these this processor can run, and runs faster than ONNX Runtime's operators.
size_t count_operators() {
  unsigned a, b, c, d;
#ifdef BERT_AVX2
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#ifdef BERT_AVXVNNI
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 4))) return 0;
#endif
  return 7;
#else
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return 0;
  const bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & (1u << 25);
  return has_amx ? 5 : 7;  // with AMX's tiles, ONNX Runtime's products of bytes are faster
#endif
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// What ONNX Runtime calls for a session that is to have these operators.
EXPORTED Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  static Domain* domain;  // of all sessions, which it has to outlive
  static Status* const error = [&]() -> Status* {
    api = base->GetApi(kApiVersion);
    RETURN_IF_ERROR(CreateCustomOpDomain(api, "bert_export", &domain));
    for (size_t number = 0; number < count_operators(); ++number)
      RETURN_IF_ERROR(CustomOpDomain_Add(api, domain, kOperators[number]));
    return nullptr;
  }();
  return error ? invalid("the domain of bert-export's kernels cannot be made") : AddCustomOpDomain(api, options, domain);
}

// The names of the operators that are registered on this processor, then null.
EXPORTED const char* KernelName(size_t number) {
  return number < count_operators() ? kOperators[number]->GetName(kOperators[number]) : nullptr;
}
