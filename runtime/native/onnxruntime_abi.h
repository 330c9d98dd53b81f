// The part of ONNX Runtime's C interface that a library of operators needs, so that none of its headers is needed to
// build one. Releases only add to the end of OrtApi and OrtCustomOp, so an index holds for every release from the one
// that `kApiVersion` names on. Source: include/onnxruntime/core/session/onnxruntime_c_api.h of ONNX Runtime.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kApiVersion = 17;  // the first with KernelContext_ParallelFor

struct Status;
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct Shape;  // OrtTensorTypeAndShapeInfo
using Api = void (*const)();  // OrtApi is a table of functions: api[index]

struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum ErrorCode : int { kInvalidArgument = 2 };
enum ElementType : int { kFloat = 1, kUint8 = 2, kInt8 = 3, kBool = 9 };
enum Presence : int { kRequired = 0 };

// A function of OrtApi, by its index.
template <size_t Index, class Result, class... Arguments>
struct Function {
  Result operator()(const Api* api, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(api[Index])(arguments...);
  }
};

constexpr Function<0, Status*, ErrorCode, const char*> CreateStatus;
constexpr Function<26, Status*, const char*, Domain**> CreateCustomOpDomain;
constexpr Function<27, Status*, Domain*, const struct CustomOp*> CustomOpDomain_Add;
constexpr Function<28, Status*, SessionOptions*, Domain*> AddCustomOpDomain;
constexpr Function<51, Status*, Value*, void**> GetTensorMutableData;
constexpr Function<61, Status*, const Shape*, size_t*> GetDimensionsCount;
constexpr Function<62, Status*, const Shape*, int64_t*, size_t> GetDimensions;
constexpr Function<65, Status*, const Value*, Shape**> GetTensorTypeAndShape;
constexpr Function<85, Status*, const KernelInfo*, const char*, float*> KernelInfoGetAttribute_float;
constexpr Function<86, Status*, const KernelInfo*, const char*, int64_t*> KernelInfoGetAttribute_int64;
constexpr Function<90, Status*, const KernelContext*, size_t, const Value**> KernelContext_GetInput;
constexpr Function<91, Status*, KernelContext*, size_t, const int64_t*, size_t, Value**> KernelContext_GetOutput;
constexpr Function<99, void, Shape*> ReleaseTensorTypeAndShapeInfo;
constexpr Function<249, Status*, const KernelInfo*, size_t, int*, const Value**> KernelInfoGetConstantInput_tensor;
constexpr Function<274, Status*, const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*>
    KernelContext_ParallelFor;

// OrtCustomOp. What is null is not asked for.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);  // CreateKernelV2 takes its place
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  ElementType (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  ElementType (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);  // KernelComputeV2 takes its place
  void (*KernelDestroy)(void*);
  Presence (*GetInputCharacteristic)(const CustomOp*, size_t);
  Presence (*GetOutputCharacteristic)(const CustomOp*, size_t);
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
