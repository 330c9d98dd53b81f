// The part of ONNX Runtime's C API that a custom operator library needs, declared by hand so that the build needs none
// of its headers. Releases only append to OrtApi and OrtCustomOp, so an index is valid for every release from
// kApiVersion on. Source: include/onnxruntime/core/session/onnxruntime_c_api.h of ONNX Runtime.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kApiVersion = 17;  // of ONNX Runtime 1.17, the first with KernelContext_ParallelFor

struct Status;
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct Shape;                 // OrtTensorTypeAndShapeInfo
using Api = void (*const)();  // OrtApi is a table of functions: api[index]

struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
// kAnyType is ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, which an operator declares for an input of any type.
enum ElementType : int { kAnyType = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt64 = 7, kBool = 9, kBFloat16 = 16 };
enum Characteristic : int { kRequired = 0, kOptional = 1 };

// A function of OrtApi, by its index.
template <size_t Index, class Result, class... Arguments>
struct ApiFunction {
  Result operator()(const Api* api, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(api[Index])(arguments...);
  }
};

constexpr ApiFunction<0, Status*, ErrorCode, const char*> CreateStatus;
constexpr ApiFunction<26, Status*, const char*, Domain**> CreateCustomOpDomain;
constexpr ApiFunction<27, Status*, Domain*, const struct CustomOp*> CustomOpDomain_Add;
constexpr ApiFunction<28, Status*, SessionOptions*, Domain*> AddCustomOpDomain;
constexpr ApiFunction<51, Status*, Value*, void**> GetTensorMutableData;
constexpr ApiFunction<60, Status*, const Shape*, ElementType*> GetTensorElementType;
constexpr ApiFunction<61, Status*, const Shape*, size_t*> GetDimensionsCount;
constexpr ApiFunction<62, Status*, const Shape*, int64_t*, size_t> GetDimensions;
constexpr ApiFunction<65, Status*, const Value*, Shape**> GetTensorTypeAndShape;
constexpr ApiFunction<85, Status*, const KernelInfo*, const char*, float*> KernelInfoGetAttribute_float;
constexpr ApiFunction<86, Status*, const KernelInfo*, const char*, int64_t*> KernelInfoGetAttribute_int64;
constexpr ApiFunction<90, Status*, const KernelContext*, size_t, const Value**> KernelContext_GetInput;
constexpr ApiFunction<91, Status*, KernelContext*, size_t, const int64_t*, size_t, Value**> KernelContext_GetOutput;
constexpr ApiFunction<93, void, Status*> ReleaseStatus;
constexpr ApiFunction<99, void, Shape*> ReleaseTensorTypeAndShapeInfo;
constexpr ApiFunction<249, Status*, const KernelInfo*, size_t, int*, const Value**> KernelInfoGetConstantInput_tensor;
constexpr ApiFunction<274, Status*, const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*>
    KernelContext_ParallelFor;

// OrtCustomOp. ONNX Runtime does not call the functions that are null.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);  // null: CreateKernelV2 replaces it
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  ElementType (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  ElementType (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);  // null: KernelComputeV2 replaces it
  void (*KernelDestroy)(void*);
  Characteristic (*GetInputCharacteristic)(const CustomOp*, size_t);
  Characteristic (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, void*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
};

}  // namespace ort
