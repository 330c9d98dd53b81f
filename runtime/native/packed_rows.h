// Packed rows: a batch without the rows behind each sequence's last token, [1, N, C] instead of [B, T, C].
//
//   mask [B, T]        rows [B, T, C]          packed [1, N, C]
//    1 1 1 0            a0 a1 a2  ·             a0 a1 a2 b0 b1 b2 b3 c0
//    0 1 1 1            b0 b1 b2 b3
//    0 0 0 0            c0  ·  ·  ·             a sequence has at least one row
//
// EmbedNorm packs rows where it has a mask. Operators of attention and of pooling, and KeepTokens, read packed rows as
// well as those of batches with padding. FirstRows and UnpackRows lead from packed rows to what other operators read.
#pragma once
#include <algorithm>

#include "kernels.h"
#include "onnxruntime_tensors.h"
#include "scratch.h"

namespace bert::operators {

using namespace ort;

inline bool is_mask(const Tensor& mask) { return mask.rank == 2 && (mask.type == kBool || mask.type == kInt64); }

// Number of packed rows of a sequence with a mask [tokens]: up to its last token, and at least one.
template <class T>
size_t packed_row_count(const T* mask, size_t tokens) {
  while (tokens > 1 && !mask[tokens - 1]) --tokens;
  return tokens;
}

// Returns the first packed row of each sequence of a mask [B, T], and their end: [B + 1], a thread's memory.
inline const size_t* packed_starts(const Tensor& mask) {
  static thread_local Scratch scratch;
  const auto batch = static_cast<size_t>(mask.dimensions[0]), tokens = static_cast<size_t>(mask.dimensions[1]);
  auto* starts = reinterpret_cast<size_t*>(scratch.reserve((batch + 1) * sizeof(size_t)));
  const auto count = [&](const auto* values) {
    starts[0] = 0;
    for (size_t sequence = 0; sequence < batch; ++sequence)
      starts[sequence + 1] = starts[sequence] + packed_row_count(values + sequence * tokens, tokens);
  };
  if (mask.type == kBool)
    count(mask.as<uint8_t>());
  else
    count(mask.as<int64_t>());
  return starts;
}

// Reads where the rows of x lie, [B, T, C] or packed for a mask [B, T]. Any other mask is one of rows [B, T, C].
inline Status* read_sequence_rows(const Tensor& x, const Tensor& mask, SequenceRows& rows) {
  rows = {static_cast<size_t>(x.dimensions[0]), static_cast<size_t>(x.dimensions[1]), nullptr};
  if (!is_mask(mask) || x.dimensions[0] != 1 || mask.has_shape({1, x.dimensions[1]})) return nullptr;
  rows = {static_cast<size_t>(mask.dimensions[0]), static_cast<size_t>(mask.dimensions[1]), packed_starts(mask)};
  return static_cast<int64_t>(rows.first_row(rows.batch)) == x.dimensions[1]
             ? nullptr
             : invalid_argument("expected a mask [B, T], or as many packed rows [1, N] as it says");
}

// The same for a mask [B, T] alone; any other is an error that says what was expected.
inline Status* read_masked_rows(const Tensor& x, const Tensor& mask, const char* expected, SequenceRows& rows) {
  if (x.rank != 3 || !is_mask(mask)) return invalid_argument(expected);
  RETURN_IF_ERROR(read_sequence_rows(x, mask, rows));
  return rows.starts || mask.has_shape({x.dimensions[0], x.dimensions[1]}) ? nullptr : invalid_argument(expected);
}

// mask bool or int64 [B, T] → int64 [B, 1, 2], the indices (0, row) of each sequence's first packed row
struct FirstRows {
  static constexpr const char* kName = "FirstRows";
  static constexpr ElementType kInputs[] = {kAnyType};
  static constexpr ElementType kOutputs[] = {kInt64};

  static Status* create(const KernelInfo*, void** kernel) {
    *kernel = new FirstRows;
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor mask;
    RETURN_IF_ERROR(read_input(context, 0, mask));
    if (!is_mask(mask)) return invalid_argument("expected a mask of bool or int64 [B, T]");
    int64_t* indices = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, Tensor{nullptr, {mask.dimensions[0], 1, 2}, 3}, &indices));
    const size_t* starts = packed_starts(mask);
    for (int64_t sequence = 0; sequence < mask.dimensions[0]; ++sequence) {
      indices[2 * sequence] = 0;
      indices[2 * sequence + 1] = static_cast<int64_t>(starts[sequence]);
    }
    return nullptr;
  }
};

// (packed rows float32 [1, N, C], mask bool or int64 [B, T]) → float32 [B, T, C], with zeros behind each sequence
struct UnpackRows {
  static constexpr const char* kName = "UnpackRows";
  static constexpr ElementType kInputs[] = {kFloat, kAnyType};
  static constexpr ElementType kOutputs[] = {kFloat};

  static Status* create(const KernelInfo*, void** kernel) {
    *kernel = new UnpackRows;
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[2];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [packed, mask] = inputs;
    SequenceRows rows = {};
    RETURN_IF_ERROR(
        read_masked_rows(packed, mask, "expected packed rows [1, N, C], and a mask of bool or int64 [B, T]", rows));
    const size_t columns = packed.last_dimension();
    float* y = nullptr;
    RETURN_IF_ERROR(allocate_output(
        context, 0, Tensor{nullptr, {mask.dimensions[0], mask.dimensions[1], packed.dimensions[2]}, 3}, &y));
    auto unpack = [&](size_t sequence) {
      const size_t count = rows.row_count(sequence) * columns;
      float* to = y + sequence * rows.tokens * columns;
      std::copy_n(packed.as<float>() + rows.first_row(sequence) * columns, count, to);
      std::fill(to + count, y + (sequence + 1) * rows.tokens * columns, 0.0F);
    };
    if (rows.batch) thread_pool(context).parallel_for(rows.batch, unpack);
    return nullptr;
  }
};

}  // namespace bert::operators
