// ONNX Runtime operators of embeddings: EmbedNorm and EmbedNormQuantize. Kernel: embeddings.cc.
#pragma once
#include <cinttypes>
#include <cstdio>
#include <iterator>

#include "kernels.h"
#include "layer_norm_operator.h"
#include "onnxruntime_tensors.h"
#include "packed_rows.h"

namespace bert::operators {

using namespace ort;

// Returns an error unless the ids are rows of a table; like ONNX's Gather, they may count from its end.
inline Status* check_ids(const Tensor& ids, size_t rows, const char* name) {
  const auto end = static_cast<int64_t>(rows);
  for (size_t i = 0; i < ids.size(); ++i)
    if (const int64_t id = ids.as<int64_t>()[i]; id < -end || id >= end) {
      char message[160];
      std::snprintf(message, sizeof message, "expected %s from 0 to %" PRId64 ", found %" PRId64 " at index %zu", name,
                    end - 1, id, i);
      return invalid_argument(message);
    }
  return nullptr;
}

// Inputs of a call, as the kernel takes them. Some may be left out.
struct Embeddings {
  Tensor ids, table, scales, positions, position_ids, segments, segment_ids;

  Status* read(KernelContext* context) {
    size_t index = 0;
    for (Tensor* tensor : {&ids, &table, &scales, &positions, &position_ids, &segments, &segment_ids})
      RETURN_IF_ERROR(read_input(context, index++, *tensor));
    return nullptr;
  }

  Status* check(size_t columns) const {
    if (ids.rank != 2) return invalid_argument("expected ids [B, T]");
    for (const Tensor* rows : {&table, &positions, &segments})
      if (rows->is_given() && (rows->rank != 2 || !rows->size() || rows->last_dimension() != columns))
        return invalid_argument("expected tables of embeddings [rows, C]");
    if (table.type != kFloat && table.type != kInt8 && table.type != kBFloat16)
      return invalid_argument("expected embeddings of tokens in float32, bfloat16 or int8");
    if ((table.type == kInt8) != scales.is_given() || (scales.is_given() && scales.size() != rows_of(table)))
      return invalid_argument("expected a scale for each row of int8 embeddings, and none otherwise");
    RETURN_IF_ERROR(check_ids(ids, rows_of(table), "token ids"));
    RETURN_IF_ERROR(check_optional_ids(position_ids, positions, "position ids"));
    RETURN_IF_ERROR(check_optional_ids(segment_ids, segments, "segment ids"));
    if (positions.is_given() && !position_ids.is_given() && ids.dimensions[1] > positions.dimensions[0])
      return invalid_argument("expected no more tokens than there are positions");
    if (segments.is_given() && !segment_ids.is_given() && rows_of(segments) != 1)
      return invalid_argument("expected segment ids, or a single segment");
    return nullptr;
  }

  static size_t rows_of(const Tensor& rows) { return static_cast<size_t>(rows.dimensions[0]); }

 private:
  Status* check_optional_ids(const Tensor& optional, const Tensor& rows, const char* name) const {
    if (!optional.is_given()) return nullptr;
    if (!rows.is_given() || !optional.has_shape_of(ids))
      return invalid_argument("expected ids of positions and segments [B, T], and their tables");
    return check_ids(optional, rows_of(rows), name);
  }
};

template <bool quantizes>
struct EmbedNormTypes {
  static constexpr ElementType kInputs[] = {kInt64,           kAnyType,          optional(kFloat), optional(kFloat),
                                            optional(kInt64), optional(kFloat),  optional(kInt64), kFloat,
                                            kFloat,           optional(kAnyType)};
  static constexpr ElementType kOutputs[] = {kFloat};
};
template <>
struct EmbedNormTypes<true> {
  static constexpr ElementType kInputs[] = {
      kInt64, kAnyType, optional(kFloat), optional(kFloat), optional(kInt64), optional(kFloat),  optional(kInt64),
      kFloat, kFloat,   kFloat,           kFloat,           kUint8,           optional(kAnyType)};
  static constexpr ElementType kOutputs[] = {kFloat, kUint8};
};

// (ids int64 [B, T], table [V, C] float32, bfloat16 or int8, scales float32 [V, 1] of an int8 table, positions float32
// [P, C], position ids int64 [B, T], segments float32 [G, C], segment ids int64 [B, T], gamma [C], beta [C])
// → y float32 [B, T, C] = LayerNorm of the sum of the rows. Scales, positions, segments and their ids may be left out:
// positions are then 0, 1, 2, …, and there is one segment.
// With quantization, also (smoothing [C], scale, zero point) → quantize(y · smoothing) uint8 [B, T, C].
// With a mask bool or int64 [B, T], the last input, the outputs are packed rows [1, N, C].
template <bool quantizes>
struct EmbedNorm {
  static constexpr const char* kName = quantizes ? "EmbedNormQuantize" : "EmbedNorm";
  static constexpr const auto& kInputs = EmbedNormTypes<quantizes>::kInputs;
  static constexpr const auto& kOutputs = EmbedNormTypes<quantizes>::kOutputs;
  static constexpr size_t kFirstConstant = 7;
  size_t columns;
  const float *gamma, *beta, *smoothing;
  QuantParams output;
  float epsilon;

  static Status* create(const KernelInfo* info, void** kernel) {
    float epsilon = 0;
    RETURN_IF_ERROR(read_epsilon(info, epsilon));
    Tensor norm[2], quantization[3];
    QuantParams output = {};
    RETURN_IF_ERROR(read_constants(info, kFirstConstant, norm));
    const auto& [gamma, beta] = norm;
    const auto& [smoothing, scale, zero_point] = quantization;
    if constexpr (quantizes) {
      RETURN_IF_ERROR(read_constants(info, kFirstConstant + 2, quantization));
      RETURN_IF_ERROR(read_quant_params(scale, zero_point, output));
    }
    const size_t columns = gamma.last_dimension();
    if (!columns || !gamma.is_vector(columns) || !beta.is_vector(columns) ||
        (quantizes && !smoothing.is_vector(columns)))
      return invalid_argument("expected gamma, beta and smoothing [C]");
    *kernel = new EmbedNorm{columns, gamma.as<float>(), beta.as<float>(), smoothing.as<float>(), output, epsilon};
    return nullptr;
  }

  Status* compute(KernelContext* context) const {
    Embeddings inputs;
    RETURN_IF_ERROR(inputs.read(context));
    RETURN_IF_ERROR(inputs.check(columns));
    Tensor mask;
    RETURN_IF_ERROR(read_input(context, std::size(kInputs) - 1, mask));
    if (mask.is_given() && (!is_mask(mask) || !mask.has_shape_of(inputs.ids)))
      return invalid_argument("expected a mask of bool or int64 [B, T]");
    const SequenceRows rows = {static_cast<size_t>(inputs.ids.dimensions[0]),
                               static_cast<size_t>(inputs.ids.dimensions[1]),
                               mask.is_given() ? packed_starts(mask) : nullptr};
    Tensor like = inputs.ids;
    like.rank = 3;
    like.dimensions[2] = static_cast<int64_t>(columns);
    if (rows.starts) {
      like.dimensions[0] = 1;
      like.dimensions[1] = static_cast<int64_t>(rows.first_row(rows.batch));
    }
    float* y = nullptr;
    uint8_t* quantized = nullptr;
    RETURN_IF_ERROR(allocate_output(context, 0, like, &y));
    if constexpr (quantizes) RETURN_IF_ERROR(allocate_output(context, 1, like, &quantized));
    const Tensor &table = inputs.table, &positions = inputs.positions, &segments = inputs.segments;
    const TokenTable tokens = {Embeddings::rows_of(table), table.type == kFloat ? table.as<float>() : nullptr,
                               table.type == kBFloat16 ? table.as<BFloat16>() : nullptr,
                               table.type == kInt8 ? table.as<int8_t>() : nullptr, inputs.scales.as<float>()};
    const EmbedLayerNorm layer_norm = {rows,
                                       columns,
                                       inputs.ids.as<int64_t>(),
                                       tokens,
                                       positions.as<float>(),
                                       inputs.position_ids.as<int64_t>(),
                                       segments.as<float>(),
                                       inputs.segment_ids.as<int64_t>(),
                                       Embeddings::rows_of(positions),
                                       Embeddings::rows_of(segments),
                                       gamma,
                                       beta,
                                       smoothing,
                                       epsilon};
    layer_norm.compute(y, quantized, output, thread_pool(context));
    return nullptr;
  }
};

}  // namespace bert::operators
