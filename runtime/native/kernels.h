// The kernels, without ONNX Runtime. Tensors are dense and row-major; shapes are in brackets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace bert {

struct Free {
  void operator()(void* memory) const;
};

// Memory for vectors of 64 bytes.
template <class T>
using Aligned = std::unique_ptr<T[], Free>;
void* allocate(size_t bytes);

// Runs job(0) … job(count - 1) on the threads there are, in any order.
using Job = void (*)(void* state, size_t number);
using Parallel = void (*)(void* context, Job job, void* state, size_t count);
struct Threads {
  void* context;
  Parallel run;
  template <class F>
  void each(size_t count, F& f) const {
    run(context, [](void* state, size_t number) { (*static_cast<F*>(state))(number); }, &f, count);
  }
};

// A range of bytes: value = scale · (byte - zero_point).
struct Range {
  float scale;
  uint8_t zero_point;
};

// GELU that ends in bytes of a range: x·Φ(x) = max(x, 0) - t·Φ(-t) with t = |x|, of which the second is a polynomial in
// each of a few pieces (within 1e-4) and 0 beyond them. All in steps of the range, its zero point included.
struct Gelu {
  explicit Gelu(Range output);
#ifdef BERT_AVX2
  static constexpr int kPieces = 8, kDegree = 3;
#else
  static constexpr int kPieces = 16, kDegree = 2;
#endif
  alignas(64) float tables[kDegree + 1][kPieces];
  float most, pieces_per_step;
};

template <class Weight>
struct PackedWeight;

// y = scales · (x · weight) + bias, for bytes by signed bytes and for floats.
template <class Input, class Weight>
class Linear {
 public:
  // Copies and rearranges the weight [inputs, outputs], unless another Linear of the process has the same one already;
  // `scales`, or null for 1, and `bias` are [outputs]. A row of the input is a multiple of 4 bytes.
  Linear(const Weight* weight, const float* scales, const float* bias, size_t inputs, size_t outputs);
  // The same for inputs of a range: leaves out what its zero point adds. Results are multiples of `unit`.
  Linear(const Weight* weight, const float* scales, const float* bias, size_t inputs, size_t outputs, Range input,
         float unit = 1);
  // y [rows, outputs]
  void run(const Input* x, size_t rows, float* y, const Threads& threads) const;
  // y [rows, outputs]: GELU of the sum, exact within 1e-6.
  void run_gelu(const Input* x, size_t rows, float* y, const Threads& threads) const;
  // y bytes [rows, outputs]: GELU of the sum, whose unit is a step of the bytes.
  void run_gelu(const Input* x, size_t rows, uint8_t* y, const Gelu& gelu, const Threads& threads) const;
  size_t inputs() const { return inputs_; }
  size_t outputs() const { return outputs_; }

 private:
  template <class Finish>
  void run(const Input* x, size_t rows, const Finish& finish, const Threads& threads) const;
  template <class Dot, class Finish>
  void run(const Input* x, size_t rows, const Finish& finish, const Threads& threads) const;
  size_t inputs_, outputs_;
  std::shared_ptr<const PackedWeight<Weight>> weight_;
  Aligned<float> scales_, bias_;
};

// Softmax(query · keyᵀ · scale + mask) · value for each head.
struct Attention {
  size_t batch, tokens, heads, head_size;
  float scale;
  const float* qkv;  // [batch, tokens, 3 · heads · head_size]
  const bool* mask;  // [batch, 1, tokens, tokens], false where a key is left out; or null
  // y [batch, tokens, heads · head_size]
  void run(float* y, const Threads& threads) const;
  // The same as bytes of the range `output`, with products of 16-bit integers.
  void run(uint8_t* y, Range output, const Threads& threads) const;
};

// LayerNorm(x + residual), and that times a smoothing as bytes. x, residual and y are [rows, columns]; the rest are
// [columns].
struct AddNorm {
  size_t rows, columns;
  const float *x, *residual, *gamma, *beta, *smoothing;
  float epsilon;
  void run(float* y, uint8_t* bytes, Range output, const Threads& threads) const;
};

}  // namespace bert
