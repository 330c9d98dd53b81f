// Helpers over ONNX Runtime's C API: tensors, constants and attributes of an operator, its thread pool, errors.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels.h"
#include "onnxruntime_abi.h"

namespace ort {

inline const Api* api = nullptr;  // set when the library is registered

// Returns from the function with the error of an expression, if it has one.
#define RETURN_IF_ERROR(expression)                        \
  do {                                                     \
    if (::ort::Status* error = (expression)) return error; \
  } while (false)

inline Status* invalid_argument(const char* message) { return CreateStatus(api, kInvalidArgument, message); }

// An input of an operator as it is declared: its type, and that it may be left out.
constexpr int kOptionalBit = 1 << 8;
constexpr ElementType optional(ElementType type) { return static_cast<ElementType>(type | kOptionalBit); }
constexpr ElementType type_of(ElementType declared) { return static_cast<ElementType>(declared & ~kOptionalBit); }
constexpr Characteristic characteristic_of(ElementType declared) {
  return declared & kOptionalBit ? kOptional : kRequired;
}

// A view of a tensor of ONNX Runtime.
struct Tensor {
  static constexpr size_t kMaxRank = 8;
  void* data = nullptr;
  int64_t dimensions[kMaxRank] = {};
  size_t rank = 0;
  ElementType type = kAnyType;

  Status* read(const Value* value) {
    RETURN_IF_ERROR(GetTensorMutableData(api, const_cast<Value*>(value), &data));
    Shape* shape = nullptr;
    RETURN_IF_ERROR(GetTensorTypeAndShape(api, value, &shape));
    Status* error = GetTensorElementType(api, shape, &type);
    if (!error) error = GetDimensionsCount(api, shape, &rank);
    if (!error)
      error = rank <= kMaxRank ? GetDimensions(api, shape, dimensions, rank)
                               : invalid_argument("expected a tensor of at most 8 axes");
    ReleaseTensorTypeAndShapeInfo(api, shape);
    return error;
  }
  bool is_given() const { return type != kAnyType; }  // false for an optional input that is left out
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  size_t size() const {
    size_t product = 1;
    for (size_t axis = 0; axis < rank; ++axis) product *= static_cast<size_t>(dimensions[axis]);
    return product;
  }
  size_t last_dimension() const { return rank ? static_cast<size_t>(dimensions[rank - 1]) : 0; }
  bool has_shape_of(const Tensor& other) const {
    return std::equal(dimensions, dimensions + rank, other.dimensions, other.dimensions + other.rank);
  }
  bool has_shape(std::initializer_list<int64_t> shape) const {
    return std::equal(dimensions, dimensions + rank, shape.begin(), shape.end());
  }
  bool is_vector(size_t size) const { return rank == 1 && last_dimension() == size; }
};

inline Status* read_quant_params(const Tensor& scale, const Tensor& zero_point, bert::QuantParams& params) {
  if (scale.size() != 1 || zero_point.size() != 1)
    return invalid_argument("expected one scale and one zero point for the tensor");
  params = {*scale.as<float>(), *zero_point.as<uint8_t>()};
  return nullptr;
}

// Reads an input; one that is left out is not given, and has no data.
inline Status* read_input(KernelContext* context, size_t index, Tensor& tensor) {
  const Value* value = nullptr;
  RETURN_IF_ERROR(KernelContext_GetInput(api, context, index, &value));
  return value ? tensor.read(value) : nullptr;
}

// Reads the inputs from the first on.
template <size_t Count>
Status* read_inputs(KernelContext* context, Tensor (&tensors)[Count]) {
  for (size_t index = 0; index < Count; ++index) RETURN_IF_ERROR(read_input(context, index, tensors[index]));
  return nullptr;
}

// Reads the inputs from `first` on, which must be constants. Their data stay valid as long as the session.
template <size_t Count>
Status* read_constants(const KernelInfo* info, size_t first, Tensor (&tensors)[Count]) {
  for (size_t index = 0; index < Count; ++index) {
    int is_constant = 0;
    const Value* value = nullptr;
    RETURN_IF_ERROR(KernelInfoGetConstantInput_tensor(api, info, first + index, &is_constant, &value));
    if (!is_constant) return invalid_argument("expected weights, scales, zero points and biases that are constants");
    RETURN_IF_ERROR(tensors[index].read(value));
  }
  return nullptr;
}

// Allocates an output with the dimensions of `like`.
template <class T>
Status* allocate_output(KernelContext* context, size_t index, const Tensor& like, T** data) {
  Value* value = nullptr;
  RETURN_IF_ERROR(KernelContext_GetOutput(api, context, index, like.dimensions, like.rank, &value));
  return GetTensorMutableData(api, value, reinterpret_cast<void**>(data));
}

// The session's intra-op thread pool.
inline bert::ThreadPool thread_pool(KernelContext* context) {
  return {context, [](void* context, bert::Task task, void* state, size_t count) {
            if (count == 1) {
              task(state, 0);
              return true;
            }
            Status* const status =  // of an exception of the pool, which may have no memory for its queues
                KernelContext_ParallelFor(api, static_cast<KernelContext*>(context), task, count, 0, state);
            if (status) ReleaseStatus(api, status);
            return !status;
          }};
}

}  // namespace ort
