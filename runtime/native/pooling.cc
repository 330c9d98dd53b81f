// The mean of each sequence's tokens (MeanPool), and its normalization (MeanPoolNormalize).
//
//   x of a sequence      block of columns: 4 vectors
//               token 0  | sum |     |     |           job: successive blocks, of one sequence or several;
//               token 1  |  ↓  |     |     |           a single one of a long text
//                  …
#include <algorithm>
#include <cmath>

#include "layer_norm.h"

namespace bert {

namespace {

constexpr float kMinWeight = 1e-9F, kMinNorm = 1e-12F;
constexpr size_t kJobElements = 1 << 15;  // of x: fewer are not worth a thread's start (a judgement)

// Sums a block of columns over the tokens whose weight is not 0.
template <class Count>
void sum_tokens(const float* x, size_t stride, const float* weights, size_t tokens, Count count,
                F32 (&sums)[kVectors]) {
  for (size_t token = 0; token < tokens; ++token, x += stride) {
    if (weights[token] == 0) continue;
    const F32 weight = set1(weights[token]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sums[i] = fma(load_n(x + kLanes * i, count - kLanes * i), weight, sums[i]);
  }
}

// Divides a vector by its length.
void normalize(float* y, size_t columns) {
  F32 squares = set1(0.0F);
  for (size_t i = 0; i < columns; i += kLanes) {
    const F32 part = load_n(y + i, remaining(columns, i));
    squares = fma(part, part, squares);
  }
  const F32 factor = set1(1 / std::max(std::sqrt(reduce_sum(squares)), kMinNorm));
  for (size_t i = 0; i < columns; i += kLanes)
    store_n(y + i, load_n(y + i, remaining(columns, i)) * factor, remaining(columns, i));
}

}  // namespace

void MeanPool::compute(float* y, const ThreadPool& threads) const {
  const size_t blocks_per_row = ceil_div(columns, kBlockColumns), blocks = batch * blocks_per_row;
  const size_t job_blocks = std::max<size_t>(1, kJobElements / std::max<size_t>(1, tokens * kBlockColumns));
  auto sum_block = [&](size_t index) {
    const size_t sequence = index / blocks_per_row, column = index % blocks_per_row * kBlockColumns;
    const float* of_sequence = weights + sequence * tokens;
    float total = 0;
    for (size_t token = 0; token < tokens; ++token) total += of_sequence[token];
    const F32 factor = set1(1 / std::max(total, kMinWeight));
    const float* first = x + first_row(sequence) * columns + column;
    float* to = y + sequence * columns + column;
    auto sum = [&](auto count) {
      F32 sums[kVectors] = {};
      sum_tokens(first, columns, of_sequence, row_count(sequence), count, sums);
      for (F32& part : sums) part = part * factor;
      store_block(to, count, sums);
    };
    if (column + kBlockColumns <= columns)
      sum(std::integral_constant<ptrdiff_t, kBlockColumns>{});
    else
      sum(remaining(columns, column));
  };
  auto job = [&](size_t index) {
    for (size_t block = index * job_blocks; block < std::min(blocks, (index + 1) * job_blocks); ++block)
      sum_block(block);
  };
  if (blocks) threads.parallel_for(ceil_div(blocks, job_blocks), job);
  for (size_t sequence = 0; is_normalized && sequence < batch; ++sequence) normalize(y + sequence * columns, columns);
}

}  // namespace bert
