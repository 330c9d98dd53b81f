// ONNX Runtime operator of token pruning: KeepTokens. Kernel: keep_tokens.cc.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "onnxruntime_tensors.h"
#include "packed_rows.h"
#include "scratch.h"

namespace bert::operators {

using namespace ort;

// (qkv float32 [B, T, 3·H·S], mask bool [B, T], lengths int64 [B]) → indices int64 [B, K, 1] of the tokens that stay,
// whether they are real bool [B, K], the mask of attention among them bool [B, 1, K, K], whether all of it is true
// bool. For packed rows [1, N, 3·H·S], the indices are those of the rows that stay packed, [1, M, 1].
struct KeepTokensOperator {
  static constexpr const char* kName = "KeepTokens";
  static constexpr ElementType kInputs[] = {kFloat, kBool, kInt64};
  static constexpr ElementType kOutputs[] = {kInt64, kBool, kBool, kBool};
  size_t num_heads, percent;
  float scale;

  static Status* create(const KernelInfo* info, void** kernel) {
    int64_t heads = 0, percent = 0;
    float scale = 0;
    RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "num_heads", &heads));
    RETURN_IF_ERROR(KernelInfoGetAttribute_int64(api, info, "percent", &percent));
    RETURN_IF_ERROR(KernelInfoGetAttribute_float(api, info, "scale", &scale));
    if (heads < 1 || !(scale > 0) || !std::isfinite(scale) || percent < 1 || percent > 100)
      return invalid_argument("expected num_heads of at least 1, a finite scale above 0, and a percent of 1 to 100");
    *kernel = new KeepTokensOperator{static_cast<size_t>(heads), static_cast<size_t>(percent), scale};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Tensor inputs[3];
    RETURN_IF_ERROR(read_inputs(context, inputs));
    const auto& [qkv, mask, lengths] = inputs;
    const size_t width = qkv.last_dimension() / 3;
    if (qkv.rank != 3 || !width || qkv.last_dimension() % 3 || width % num_heads)
      return invalid_argument("expected queries, keys and values [B, T, 3·num_heads·S], S above 0");
    SequenceRows rows = {};
    RETURN_IF_ERROR(read_sequence_rows(qkv, mask, rows));
    const auto batch = static_cast<int64_t>(rows.batch), tokens = static_cast<int64_t>(rows.tokens);
    if (!mask.has_shape({batch, tokens}) || !lengths.has_shape({batch}))
      return invalid_argument("expected a mask [B, T] and lengths [B]");
    const KeepTokens chooser = {
        rows, num_heads, width / num_heads, scale, qkv.as<float>(), mask.as<uint8_t>(), lengths.as<int64_t>(), percent};
    const size_t count = chooser.max_count();
    int64_t* indices = nullptr;
    uint8_t *kept_mask = nullptr, *attention_mask = nullptr, *is_full = nullptr;
    const auto kept = static_cast<int64_t>(count);
    static thread_local Scratch scratch;
    if (rows.starts)
      indices = reinterpret_cast<int64_t*>(scratch.reserve(rows.batch * count * sizeof(int64_t)));
    else
      RETURN_IF_ERROR(allocate_output(context, 0, Tensor{nullptr, {batch, kept, 1}, 3}, &indices));
    RETURN_IF_ERROR(allocate_output(context, 1, Tensor{nullptr, {batch, kept}, 2}, &kept_mask));
    RETURN_IF_ERROR(allocate_output(context, 2, Tensor{nullptr, {batch, 1, kept, kept}, 4}, &attention_mask));
    RETURN_IF_ERROR(allocate_output(context, 3, Tensor{}, &is_full));
    chooser.compute(count, indices, kept_mask, thread_pool(context));
    if (rows.starts) RETURN_IF_ERROR(pack_indices(context, rows, indices, kept_mask, count));
    for (size_t row = 0; row < static_cast<size_t>(batch) * count; ++row)
      std::copy_n(kept_mask + row / count * count, count, attention_mask + row * count);
    *is_full =
        std::all_of(kept_mask, kept_mask + static_cast<size_t>(batch) * count, [](uint8_t real) { return real; });
    return nullptr;
  }

 private:
  // Outputs the packed rows of the tokens that stay, of indices and kept_mask [B, count].
  static Status* pack_indices(KernelContext* context, const SequenceRows& rows, const int64_t* indices,
                              const uint8_t* kept_mask, size_t count) {
    size_t total = 0;
    for (size_t sequence = 0; sequence < rows.batch; ++sequence)
      total += packed_row_count(kept_mask + sequence * count, count);
    int64_t* packed = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, Tensor{nullptr, {1, static_cast<int64_t>(total), 1}, 3}, &packed));
    for (size_t sequence = 0; sequence < rows.batch; ++sequence) {
      const int64_t *of_sequence = indices + sequence * count, first = static_cast<int64_t>(rows.first_row(sequence));
      packed = std::transform(of_sequence, of_sequence + packed_row_count(kept_mask + sequence * count, count), packed,
                              [first](int64_t token) { return first + token; });
    }
    return nullptr;
  }
};

}  // namespace bert::operators
