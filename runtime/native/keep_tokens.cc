// Token pruning (KeepTokens): chooses the tokens of each sequence that the first one attends to most.
//
//   scores [heads, tokens] = first query · keysᵀ · scale          job: kJobTokens tokens of a sequence
//   importance [tokens] = mean over the heads of softmax(scores)  job: a sequence, as is the choice
#include <algorithm>
#include <numeric>

#include "attention.h"
#include "exp2.h"
#include "kernels.h"
#include "simd.h"

namespace bert {

namespace {

constexpr size_t kJobTokens = 64;
constexpr size_t kMinKeptTokens = 16;

float dot(const float* a, const float* b, size_t count) {
  F32 sum = set1(0.0F);
  for (size_t i = 0; i < count; i += kLanes)
    sum = fma(load_n(a + i, remaining(count, i)), load_n(b + i, remaining(count, i)), sum);
  return reduce_sum(sum);
}

// Adds softmax(scores) / heads to the importance of the real tokens. NaN counts as 0.
void add_softmax(const float* scores, const uint8_t* mask, size_t tokens, float heads, float* powers,
                 float* importance) {
  float maximum = -INFINITY;
  for (size_t i = 0; i < tokens; ++i)
    if (mask[i]) maximum = std::max(maximum, scores[i]);
  F32 total = set1(0.0F);
  for (size_t i = 0; i < tokens; i += kLanes) {
    const ptrdiff_t count = remaining(tokens, i);
    const F32 power = exp2((load_n(scores + i, count) - set1(maximum)) * set1(kLog2E));
    const F32 real = select(load_mask(mask + i, count), power, set1(0.0F));
    store_n(powers + i, real, count);
    total += real;
  }
  const float factor = 1 / (reduce_sum(total) * heads);
  for (size_t i = 0; i < tokens; ++i)
    if (powers[i] * factor > 0) importance[i] += powers[i] * factor;
}

}  // namespace

size_t KeepTokens::count(size_t sequence) const {
  const auto length = static_cast<size_t>(std::clamp<int64_t>(lengths[sequence], 0, INT32_MAX));  // before any pruning
  const size_t share = ceil_div(length * percent, 100);
  return std::min(row_count(sequence), std::max({size_t{1}, share, std::min(length, kMinKeptTokens)}));
}

size_t KeepTokens::max_count() const {
  size_t largest = 0;
  for (size_t sequence = 0; sequence < batch; ++sequence) largest = std::max(largest, count(sequence));
  return largest;
}

void KeepTokens::compute(size_t width, int64_t* indices, uint8_t* kept_mask, const ThreadPool& threads) const {
  const size_t columns = num_heads * head_size, blocks = ceil_div(tokens, kJobTokens);
  if (!batch || !tokens) return;
  const AlignedArray<float> scores(static_cast<float*>(allocate_aligned(batch * num_heads * tokens * sizeof(float))));
  auto score = [&](size_t job) {
    const size_t sequence = job / blocks, first = job % blocks * kJobTokens;
    const float* query = qkv + first_row(sequence) * 3 * columns;
    for (size_t token = first; token < std::min(row_count(sequence), first + kJobTokens); ++token)
      for (size_t head = 0; head < num_heads; ++head)
        scores[(sequence * num_heads + head) * tokens + token] =
            scale * dot(query + head * head_size, query + token * 3 * columns + columns + head * head_size, head_size);
  };
  threads.parallel_for(batch * blocks, score);
  auto choose = [&](size_t sequence) {
    thread_local Scratch scratch;
    const size_t rows = row_count(sequence);
    const uint8_t* real = mask + sequence * tokens;
    auto* importance = reinterpret_cast<float*>(scratch.reserve(tokens * (2 * sizeof(float) + sizeof(int64_t))));
    float* powers = importance + tokens;
    auto* ranked = reinterpret_cast<int64_t*>(powers + tokens);
    for (size_t token = 0; token < rows; ++token) importance[token] = real[token] ? 0 : -1;
    for (size_t head = 0; head < num_heads; ++head)
      add_softmax(&scores[(sequence * num_heads + head) * tokens], real, rows, static_cast<float>(num_heads), powers,
                  importance);
    if (real[0]) importance[0] = 2;  // padding on the left takes no place of a real token
    const size_t kept = std::min(width, count(sequence));
    std::iota(ranked, ranked + rows, 0);
    std::nth_element(ranked, ranked + kept - 1, ranked + rows, [&](int64_t a, int64_t b) {
      return importance[a] > importance[b] || (importance[a] == importance[b] && a < b);
    });
    std::sort(ranked, ranked + kept);
    for (size_t i = 0; i < width; ++i) {
      const int64_t token = i < kept ? ranked[i] : static_cast<int64_t>(tokens) - 1;
      indices[sequence * width + i] = token;
      kept_mask[sequence * width + i] = i < kept && real[token];
    }
  };
  threads.parallel_for(batch, choose);
}

}  // namespace bert
