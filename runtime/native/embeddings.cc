// The sum of the embeddings of token, position and segment, and its LayerNorm (EmbedNorm), with the quantization of the
// result for the next int8 matmul (EmbedNormQuantize). Blocks of a row: see layer_norm.h.
#include <algorithm>
#include <cstring>

#include "layer_norm.h"

namespace bert {

namespace {

constexpr size_t kLineBytes = 64;

// The row of a table for an id that may count from the end.
size_t row_of(int64_t id, size_t rows) { return static_cast<size_t>(id < 0 ? id + static_cast<int64_t>(rows) : id); }

float widened(float x) { return x; }
float widened(int8_t x) { return x; }
float widened(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Compilers vectorize these two loops.
template <class T>
void widen_row(const T* row, float scale, size_t columns, float* __restrict sums) {
  for (size_t i = 0; i < columns; ++i) sums[i] = widened(row[i]) * scale;
}

void add_row(const float* row, size_t columns, float* __restrict sums) {
  for (size_t i = 0; i < columns; ++i) sums[i] += row[i];
}

// Rows of a large table lie apart, so that the next one is fetched while this one is summed.
template <class T>
void prefetch_row(const T* row, size_t columns) {
  for (size_t byte = 0; byte < columns * sizeof(T); byte += kLineBytes)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
}

// Calls f(table of its type).
template <class F>
void visit(const TokenTable& table, const F& f) {
  if (table.int8s)
    f(table.int8s);
  else if (table.bf16s)
    f(table.bf16s);
  else
    f(table.floats);
}

}  // namespace

void EmbedLayerNorm::compute(float* y, uint8_t* quantized, QuantParams output, const ThreadPool& threads) const {
  const F32 zero_point = set1(static_cast<float>(output.zero_point)), inverse_scale = set1(1 / output.scale);
  const size_t rows = first_row(batch);
  for_each_row(rows, threads, [&](size_t row) {
    float* sums = y + row * columns;
    const size_t token = token_of_row(row);
    visit(table, [&](auto* elements) {
      const size_t index = row_of(ids[token], table.rows);
      if (row + 1 < rows) prefetch_row(elements + row_of(ids[token_of_row(row + 1)], table.rows) * columns, columns);
      widen_row(elements + index * columns, table.scales ? table.scales[index] : 1, columns, sums);
    });
    if (positions) {
      const size_t position = position_ids ? row_of(position_ids[token], num_positions) : token % tokens;
      add_row(positions + position * columns, columns, sums);
    }
    if (segments)
      add_row(segments + (segment_ids ? row_of(segment_ids[token], num_segments) * columns : 0), columns, sums);
    normalize_row(
        *this, sums, [&](size_t at, auto count) { return load_n(sums + at, count); },
        [&](size_t column, auto count, const F32(&values)[kVectors]) {
          store_block(sums + column, count, values);
          if (quantized)
            quantize_block(quantized + row * columns + column, count, values, smoothing + column, inverse_scale,
                           zero_point);
        });
  });
}

}  // namespace bert
