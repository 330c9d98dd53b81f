// Attention of one query in each sequence, that of the first token, where the head reads nothing else
// (FirstTokenAttention), in float32.
//
// A score is a dot product of the query and a key as it lies in memory: with one query, packing keys would cost more
// than the products. A job is some heads of a sequence.
#include <algorithm>
#include <cmath>

#include "exp2.h"
#include "simd.h"

namespace bert {

namespace {

constexpr float kLog2E = 1.44269504F;     // softmax is computed with powers of 2: exp(x) = 2^(x · log2 e)
constexpr size_t kJobProducts = 1 << 14;  // fewer are not worth a thread's start (a judgement)

float dot(const float* a, const float* b, size_t size) {
  F32 sum = set1(0.0F);
  for (size_t i = 0; i < size; i += kLanes)
    sum = fma(load_n(a + i, remaining(size, i)), load_n(b + i, remaining(size, i)), sum);
  return reduce_sum(sum);
}

// Replaces scores by 2^(score - maximum), which is 0 for scores of -infinity, and returns 1 / sum, or 0 without any
// key.
float softmax(float* scores, size_t count) {
  F32 maxima = set1(-INFINITY), sums = set1(0.0F);
  for (size_t i = 0; i < count; i += kLanes)
    maxima = max(maxima, select(first_lanes(remaining(count, i)), load(scores + i), set1(-INFINITY)));
  const float maximum = reduce_max(maxima);
  if (maximum == -INFINITY) return 0;
  for (size_t i = 0; i < count; i += kLanes) {
    const F32 score = select(first_lanes(remaining(count, i)), load(scores + i), set1(-INFINITY));
    const F32 power = zero_where_equal(exp2(score - set1(maximum)), score, set1(-INFINITY));
    sums += power;
    store(scores + i, power);
  }
  return 1 / reduce_sum(sums);
}

// y [head_size] = Σ probability · value · factor, for the values of the tokens that are attended to.
void weighted_sum(const float* values, size_t stride, const float* probabilities, const uint8_t* mask, size_t tokens,
                  size_t head_size, float factor, float* y) {
  for (size_t i = 0; i < head_size; i += 2 * kLanes) {
    const ptrdiff_t low = remaining(head_size, i), high = remaining(head_size, i + kLanes);
    F32 sums[2] = {set1(0.0F), set1(0.0F)};
    for (size_t token = 0; token < tokens; ++token) {
      if (!mask[token]) continue;  // padding may hold NaN or infinity
      const F32 probability = set1(probabilities[token]);
      sums[0] = fma(load_n(values + token * stride + i, low), probability, sums[0]);
      sums[1] = fma(load_n(values + token * stride + i + kLanes, high), probability, sums[1]);
    }
    store_n(y + i, sums[0] * set1(factor), low);
    store_n(y + i + kLanes, sums[1] * set1(factor), high);
  }
}

}  // namespace

void OneQueryAttention::compute(float* y, const ThreadPool& threads) const {
  const size_t width = num_heads * head_size, stride = 2 * width;
  const size_t heads_per_job =
      std::min(num_heads, std::max<size_t>(1, kJobProducts / std::max<size_t>(1, tokens * head_size)));
  const size_t jobs_per_sequence = ceil_div(num_heads, heads_per_job);
  auto job = [&](size_t index) {
    static thread_local Scratch scratch;
    auto* scores = reinterpret_cast<float*>(scratch.reserve(round_up(tokens, kLanes) * sizeof(float)));
    const size_t sequence = index / jobs_per_sequence, first = index % jobs_per_sequence * heads_per_job;
    const size_t count = row_count(sequence);
    const uint8_t* attends = mask + sequence * tokens;
    for (size_t head = first; head < std::min(num_heads, first + heads_per_job); ++head) {
      const size_t column = head * head_size;
      const float* keys = kv + first_row(sequence) * stride + column;
      const float* of_head = query + sequence * width + column;
      for (size_t token = 0; token < count; ++token)
        scores[token] = attends[token] ? dot(of_head, keys + token * stride, head_size) * scale * kLog2E : -INFINITY;
      const float factor = softmax(scores, count);
      weighted_sum(keys + width, stride, scores, attends, count, head_size, factor, y + sequence * width + column);
    }
  };
  if (batch) threads.parallel_for(batch * jobs_per_sequence, job);
}

}  // namespace bert
