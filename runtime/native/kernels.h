// Interface of the native kernels, free of ONNX Runtime: matmul (GEMM) with bias, GELU or the maximum over tokens,
// self-attention, embeddings, residual + LayerNorm, pooling, and the choice of tokens that stay, for float32 and
// quantized uint8/int8 tensors.
// Tensors are dense and row-major. Shapes are in brackets, the unit of a stride or size is an element unless a name
// says bytes.
// Whatever allocates throws std::bad_alloc where memory runs out.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace bert {

struct FreeDeleter {
  void operator()(void* memory) const;
};

// An array that starts at a multiple of 64 bytes, so that aligned vector loads can read it.
template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;
void* allocate_aligned(size_t bytes);

// Runs task(state, 0) … task(state, count - 1) on a thread pool, in any order, and returns when all are done; false if
// it could not.
using Task = void (*)(void* state, size_t index);
using ParallelFor = bool (*)(void* context, Task task, void* state, size_t count);
struct ThreadPool {
  void* context;
  ParallelFor run;
  // Calls f(0) … f(count - 1). The pool's own code must not see an exception: if f throws one, this throws
  // std::bad_alloc when all calls have returned; so it does if the pool has no memory.
  template <class F>
  void parallel_for(size_t count, F& f) const {
    struct State {
      F& f;
      std::atomic<bool> failed;
    } state = {f, {false}};
    const Task call = [](void* memory, size_t index) {
      State& state = *static_cast<State*>(memory);
      try {
        state.f(index);
      } catch (...) {  // kernels allocate, and throw nothing else
        state.failed = true;
      }
    };
    if (!run(context, call, &state, count) || state.failed) throw std::bad_alloc();
  }
};

// The upper 16 bits of a float32.
struct BFloat16 {
  uint16_t bits;
};

// Affine uint8 quantization: value = scale · (q - zero_point).
struct QuantParams {
  float scale;
  uint8_t zero_point;
};

// Tables for GELU followed by uint8 quantization (scale, zero point): see `quantized_gelu` in gelu.h.
struct QuantizedGelu {
  explicit QuantizedGelu(QuantParams output);
#if defined(BERT_AVX2) || defined(__aarch64__)
  static constexpr int kPieces = 8, kDegree = 3;
#else
  static constexpr int kPieces = 16, kDegree = 2;
#endif
  alignas(64) float coefficients[kDegree + 1][kPieces];
  float max_abs, pieces_per_step;  // max_abs is in quantization steps of the output
};

// Where the rows of each sequence of a batch lie: `tokens` of them, [batch, tokens, …], or packed, [1, starts[batch],
// …], without the rows behind a sequence's last token.
struct SequenceRows {
  size_t batch, tokens;
  const size_t* starts;  // [batch + 1], the first packed row of each sequence, and their end; null if not packed
  size_t first_row(size_t sequence) const { return starts ? starts[sequence] : sequence * tokens; }
  size_t row_count(size_t sequence) const { return first_row(sequence + 1) - first_row(sequence); }
  // The token [batch, tokens] that a row belongs to.
  size_t token_of_row(size_t row) const {
    if (!starts) return row;
    const auto sequence = static_cast<size_t>(std::upper_bound(starts + 1, starts + batch, row) - starts) - 1;
    return sequence * tokens + row - starts[sequence];
  }
};

// Which tokens of a batch count: values [batch, tokens], 0 at padding.
struct TokenMask : SequenceRows {
  const int64_t* values;
};

template <class Weight>
struct PackedWeight;
// Releases the pages of a large weight that is mapped from a file: only its packed copy is used from now on, and a new
// read would load the pages from the file again. Other memory stays as it is.
void release_mapped_pages(const void* weight, size_t bytes);

// Activation of the gates of a gated Linear.
enum class Gate { kGelu, kSilu };

// Order of the columns of a gated weight [in_features, 2 · columns], gates before ups, such that a tile of the GEMM has
// a gate and its up in the same lane of its two vectors:
//
//   gates 0 … L-1, ups 0 … L-1, gates L … 2L-1, …        L: lanes of a vector
struct GatedColumns {
  size_t columns;
  size_t count() const;                        // with the padding of the last vectors
  ptrdiff_t source(size_t interleaved) const;  // column of the weight; -1 for padding
};

// in_features of a uint8 × int8 Linear, at most: up to there, no sum of 255 · -128 overflows int32.
constexpr size_t kMaxInt8InFeatures = INT32_MAX / (255 * 128);

// Linear layer y = scales · (x · weight) + bias. The matmul is uint8 × int8 → int32, or float32, or float32 inputs that
// are rounded to bfloat16 × bfloat16 → float32.
template <class Input, class Weight>
class Linear {
 public:
  // Packs the weight [in_features, out_features], or shares the packed copy of another Linear with an equal weight.
  // `scales` and `bias` are [out_features]; null `scales` stand for 1. A uint8 row of the input must be a multiple of 4
  // bytes, and at most kMaxInt8InFeatures.
  Linear(const Weight* weight, const float* scales, const float* bias, size_t in_features, size_t out_features);
  // For quantized inputs: folds the input's scale and zero point into scales and bias. Outputs are in units of
  // `output_scale`.
  Linear(const Weight* weight, const float* scales, const float* bias, size_t in_features, size_t out_features,
         QuantParams input, float output_scale = 1);
  // y [rows, out_features], float32
  void matmul(const Input* x, size_t rows, float* y, const ThreadPool& threads) const;
  // y [rows, out_features], float32: GELU(matmul + bias), within 1e-6 of exact GELU.
  void matmul_gelu(const Input* x, size_t rows, float* y, const ThreadPool& threads) const;
  // y [rows, columns], float32: activation(gate) · up. This Linear's weight is interleaved: see GatedColumns.
  void matmul_gated(Gate gate, const Input* x, size_t rows, size_t columns, float* y, const ThreadPool& threads) const;
  // y [rows, columns], uint8: quantized activation(gate) · up. This Linear's weight is interleaved: see GatedColumns.
  void matmul_gated(Gate gate, const Input* x, size_t rows, size_t columns, uint8_t* y, QuantParams output,
                    const ThreadPool& threads) const;
  // y [rows, out_features], uint8: quantized GELU(matmul + bias). This Linear's `output_scale` is the output's scale.
  void matmul_gelu(const Input* x, size_t rows, uint8_t* y, const QuantizedGelu& gelu, const ThreadPool& threads) const;
  // y [mask.batch, out_features], float32: of each sequence, the maximum of 0 and of matmul + bias at its tokens. x is
  // the rows of the mask's sequences.
  void matmul_max(const Input* x, const TokenMask& mask, float* y, const ThreadPool& threads) const;
  size_t in_features() const { return in_features_; }
  size_t out_features() const { return out_features_; }

 private:
  template <class Epilogue>
  void gemm(const Input* x, size_t rows, const Epilogue& epilogue, const ThreadPool& threads) const;
  template <class Dot, class Epilogue>
  void gemm(const Input* x, size_t rows, const Epilogue& epilogue, const ThreadPool& threads) const;
  template <class Dot>
  void gemm_max(const Input* x, const TokenMask& mask, float* y, const ThreadPool& threads) const;
  size_t in_features_, out_features_;
  std::shared_ptr<const PackedWeight<Weight>> weight_;
  AlignedArray<float> scales_, bias_;
};

// Rotary position embeddings [tokens, head_size / 2]: at each position, elements i and i + head_size / 2 of queries and
// keys are rotated by an angle (RoPE, arXiv:2104.09864). Null: none.
struct RotaryTable {
  const float *cos, *sin;
};

// Positions as keys and as queries of disentangled attention, for every distance between two tokens: packed once, by
// head. T is float for float32 attention, and int16_t for quantized attention.
template <class T>
class PositionTables {
 public:
  // keys and queries: float32 [num_heads, positions, head_size], scaled like the scores. Their indices [2 · max_tokens]
  // say which position belongs to a distance from key to query: of keys, max_tokens - 1 down to -max_tokens; of
  // queries, 1 - max_tokens up to max_tokens.
  PositionTables(const float* keys, const float* queries, const int64_t* key_indices, const int64_t* query_indices,
                 size_t num_heads, size_t positions, size_t head_size, size_t max_tokens);
  struct Table {
    AlignedArray<T> panels;      // of each head, see disentangled_attention.h
    AlignedArray<float> scales;  // of each head, from panels to positions
  };
  size_t num_heads, head_size, max_tokens;
  size_t panel_bytes;  // of kPanelColumns distances
  size_t head_panels;  // elements of a head's panels
  Table keys, queries;
};

// Multi-head self-attention: softmax(query · keyᵀ · scale + bias + mask) · value for each head.
struct Attention : SequenceRows {
  size_t num_heads, head_size;
  float scale;       // above 0
  const float* qkv;  // rows of 3 · num_heads · head_size: queries, keys, values
  // [batch, 1, mask_rows, tokens], mask_rows tokens, or 1 for all queries alike; 0 where a query does not attend to a
  // key; null attends to all
  const uint8_t* mask;
  size_t mask_rows;
  const float* bias;  // [num_heads, 2 · tokens - 1], by the distance from query to key: see PositionBias; or null
  RotaryTable rotary;
  size_t window;  // largest distance from a query to a key; 0 for any. Not with a bias, nor with a mask of many rows.
  // The bias of the head whose first column is `column`, or null.
  const float* bias_of_head(size_t column) const {
    return bias ? bias + column / head_size * (2 * tokens - 1) : nullptr;
  }
  // y, float32 rows of num_heads · head_size. With `tables`, for at least `tokens` tokens, their scores are added, and
  // `bias` is null.
  void compute(float* y, const ThreadPool& threads, const PositionTables<float>* tables = nullptr) const;
#ifdef BERT_BF16
  // The same with matmuls of bfloat16, but for the scores of `tables`.
  void compute_bf16(float* y, const ThreadPool& threads, const PositionTables<float>* tables = nullptr) const;
#endif
  // y, uint8 rows of num_heads · head_size: matmuls of 16 bits.
  void compute(uint8_t* y, QuantParams output, const ThreadPool& threads,
               const PositionTables<int16_t>* tables = nullptr) const;
};

// Chooses the tokens that stay after a layer's attention: of each sequence of n tokens ⌈n · percent / 100⌉, or
// min(n, 16) if that is more, those that the first token attends to most on average over the heads, and always the
// first one.
struct KeepTokens : SequenceRows {
  size_t num_heads, head_size;
  float scale;
  const float* qkv;        // rows of 3 · num_heads · head_size: queries, keys, values
  const uint8_t* mask;     // [batch, tokens], 0 at padding
  const int64_t* lengths;  // [batch], the n
  size_t percent;
  size_t count(size_t sequence) const;  // tokens of a sequence that stay
  size_t max_count() const;
  // indices and kept_mask [batch, width], width = max_count(): the tokens that stay in ascending order, and whether
  // they are real. Behind them, the last token with 0.
  void compute(size_t width, int64_t* indices, uint8_t* kept_mask, const ThreadPool& threads) const;
};

// y = LayerNorm(x + residual) · gamma + beta, and quantize(y · smoothing). x, residual and the outputs are
// [rows, columns]; gamma, beta and smoothing (SmoothQuant's factors, arXiv:2211.10438) are [columns]. With pre-norm, y
// is x + residual instead.
struct AddLayerNorm {
  size_t rows, columns;
  const float *x, *residual, *gamma, *beta, *smoothing;
  float epsilon;
  bool is_pre_norm;
  void compute(float* y, uint8_t* quantized, QuantParams output, const ThreadPool& threads) const;
  // Without quantization: y, and with pre-norm also the normalized sum, which is null otherwise.
  void compute(float* y, float* normalized, const ThreadPool& threads) const;
};

// Embeddings of tokens [rows, columns]: one of float32, bfloat16, and int8 with a scale for each row.
struct TokenTable {
  size_t rows;
  const float* floats;
  const BFloat16* bf16s;
  const int8_t* int8s;
  const float* scales;
};

// y = LayerNorm(token + position + segment) · gamma + beta, and quantize(y · smoothing), for the embeddings of each
// token of a batch. y has rows of `columns`. Ids may be negative, from the end of their table, as in ONNX's Gather.
struct EmbedLayerNorm : SequenceRows {
  size_t columns;
  const int64_t* ids;  // [batch, tokens]
  TokenTable table;
  const float* positions;       // [num_positions, columns], or null
  const int64_t* position_ids;  // [batch, tokens], or null for 0, 1, 2, …
  const float* segments;        // [num_segments, columns], or null
  const int64_t* segment_ids;   // [batch, tokens], or null for the only row
  size_t num_positions, num_segments;
  const float *gamma, *beta, *smoothing;
  float epsilon;
  // `quantized` and `smoothing` may be null.
  void compute(float* y, uint8_t* quantized, QuantParams output, const ThreadPool& threads) const;
};

// Mean of each sequence's tokens: y [batch, columns] = Σ weight · x / max(Σ weight, 1e-9) for rows x of `columns` and
// weights [batch, tokens]. Tokens of weight 0 are not read. It may end in y / max(|y|, 1e-12).
struct MeanPool : SequenceRows {
  size_t columns;
  const float *x, *weights;
  bool is_normalized;
  void compute(float* y, const ThreadPool& threads) const;
};

// Attention of one query in each sequence: softmax(query · keyᵀ · scale + mask) · value for each head.
struct OneQueryAttention : SequenceRows {
  size_t num_heads, head_size;
  float scale;
  const float* query;   // [batch, num_heads · head_size]
  const float* kv;      // rows of 2 · num_heads · head_size: keys, values
  const uint8_t* mask;  // [batch, tokens], 0 where the query does not attend to a key
  // y [batch, num_heads · head_size]
  void compute(float* y, const ThreadPool& threads) const;
};

}  // namespace bert
