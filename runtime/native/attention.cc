// Attention in 16-bit integers. Keys and values have one scale for a head of a sequence, queries and probabilities one
// for each row, so that no calibration is needed.
#include <algorithm>
#include <cmath>
#include <utility>

#include "attention.h"

namespace bert {

namespace {

constexpr double kMaxSum = 2147483647;  // of products
constexpr float kMostSteps = 32767;
constexpr float kValueSteps = 4095;
constexpr float kSumOfProbabilities = 524288;  // times kValueSteps it is below kMaxSum
constexpr size_t kAhead = 8;                   // rows between the prefetch of one and its use

// The largest magnitude in rows of `size` values that are `stride` apart, of those that are `kept`, or of all for null.
float largest(const float* rows, size_t count, size_t size, size_t stride, const bool* kept) {
  F32 most = all(1e-30f);
  for (size_t row = 0; row < count; ++row, rows += stride) {
    for (size_t i = 0; i < size; i += kLanes) __builtin_prefetch(rows + kAhead * stride + i);
    if (kept && !kept[row]) continue;
    for (size_t i = 0; i < size; i += kLanes)
      most = max(magnitude(load(rows + i, left(size, i))), most);  // NaN does not count
  }
  return largest_of(most);
}

// Two vectors of values from `first` on as 16-bit integers, in an order that is the same for queries and keys.
I32 shorts_at(const float* row, size_t size, size_t first, F32 per_step) {
  return to_shorts(nearest_ints(load(row + first, left(size, first)) * per_step),
                   nearest_ints(load(row + first + kLanes, left(size, first + kLanes)) * per_step));
}

constexpr float kExponent = 8388608;  // 2²³, the lowest bit of a float's exponent as an integer

// 2^x, to 3e-6 of it, for x as a float's bits would have it: (x + 127) · kExponent. 0 below the smallest, and for NaN.
F32 power_of_two(F32 x) {
  const I32 number = max(nearest_ints(x), no_ints());
  const F32 m = of_bits((number & all(0x007fffff)) | all(0x3f800000));  // 1 and the fraction
  F32 p = all(0.0135341678f);                                           // 2^(m - 1)
  for (float coefficient : {-0.00212521059f, 0.166613385f, 0.31201604f, 0.509964228f}) p = fma(p, m, all(coefficient));
  return p * of_bits(number & all(0x7f800000));
}

// The keys and values of one head of one sequence, and room for a few queries.
struct Head {
  size_t tokens, size, stride;  // stride: floats from token to token
  size_t size_padded, tokens_padded;
  float scale, query_steps, probability_sum, key_scale, value_scale;
  int16_t *keys, *values, *queries, *probabilities;
  float* scores;
  const bool* kept;  // keys that count, or null for all: what a padded row holds must not change what others are

  Head(size_t tokens, size_t size, size_t stride, float scale, const bool* kept, Scratch& scratch)
      : tokens(tokens), size(size), stride(stride), size_padded(round_up(size, kColumns)),
        tokens_padded(round_up(tokens, kColumns)), scale(scale),
        // The largest that no sum of products overflows with.
        query_steps(std::min(kMostSteps, static_cast<float>(std::floor(std::sqrt(kMaxSum / static_cast<double>(size)))))),
        // Each may be rounded up by half a step.
        probability_sum(kSumOfProbabilities - static_cast<float>(tokens) / 2), kept(kept) {
    const size_t panels = 2 * tokens_padded * size_padded;
    const size_t sizes[] = {panels, panels, 2 * kRows * size_padded, 2 * kRows * tokens_padded,
                            4 * kRows * tokens_padded};
    size_t total = 0;
    for (size_t each : sizes) total += each;
    uint8_t* memory = scratch.take(total);
    auto part = [&memory](size_t bytes) { return std::exchange(memory, memory + bytes); };
    keys = reinterpret_cast<int16_t*>(part(sizes[0]));
    values = reinterpret_cast<int16_t*>(part(sizes[1]));
    queries = reinterpret_cast<int16_t*>(part(sizes[2]));
    probabilities = reinterpret_cast<int16_t*>(part(sizes[3]));
    scores = reinterpret_cast<float*>(part(sizes[4]));
  }

  size_t pairs_of_tokens() const { return ceil_div(tokens, 2); }

  // keys [tokens, size] → panels of C = kColumns tokens: [tokens / C, size / 2, C, 2]
  void pack_keys(const float* source) {
    const float most = largest(source, tokens, size, stride, kept);
    const F32 per_step = all(query_steps / most);
    key_scale = most / query_steps;
    for (size_t first = 0; first < tokens_padded; first += kLanes)
      for (size_t i = 0; i < size_padded; i += kColumns) {
        I32 rows[kLanes];
        for (size_t row = 0; row < kLanes; ++row)
          rows[row] = first + row < tokens ? shorts_at(source + (first + row) * stride, size, i, per_step) : no_ints();
        transpose(rows);
        int16_t* panel = keys + first / kColumns * kColumns * size_padded + (first % kColumns + kLanes * i) * 2;
        for (size_t pair = 0; pair < kLanes; ++pair) store(panel + 2 * kColumns * pair, rows[pair]);
      }
  }

  // values [tokens, size] → panels of C columns: [size / C, tokens / 2, C, 2]
  void pack_values(const float* source) {
    const size_t count = pairs_of_tokens();
    const float most = largest(source, tokens, size, stride, kept);
    const F32 per_step = all(kValueSteps / most);
    value_scale = most / kValueSteps;
    for (size_t pair = 0; pair < count; ++pair) {
      const float *even = source + 2 * pair * stride, *odd = even + stride;
      const size_t size_of_odd = 2 * pair + 1 < tokens ? size : 0;
      for (size_t i = 0; i < size_padded; i += kLanes) {
        const I32 low = nearest_ints(load(even + i, left(size, i)) * per_step);
        const I32 high = nearest_ints(load(odd + i, left(size_of_odd, i)) * per_step);
        store(values + 2 * ((i / kColumns * count + pair) * kColumns + i % kColumns), pairs(low, high));
      }
    }
  }
};

struct Output {
  uint8_t* y;  // of the first query
  size_t stride;
  F32 inverse_scale, zero_point;
};

// Scores of R queries, their softmax, and the sum of values it weights.
template <int R>
void attend(Head& head, const float* queries, const bool* mask, size_t mask_stride, const Output& output) {
  float scales[R];
  for (int r = 0; r < R; ++r) {
    const float* query = queries + r * head.stride;
    const float most = largest(query, 1, head.size, head.stride, nullptr);
    const F32 per_step = all(head.query_steps / most);
    for (size_t i = 0; i < head.size; i += kColumns)
      store(head.queries + r * head.size_padded + i, shorts_at(query, head.size, i, per_step));
    scales[r] = 1.44269504f * head.scale * head.key_scale * most / head.query_steps;  // scores are exponents of 2
  }
  F32 highest[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) highest[r] = all(-INFINITY);
  for (size_t first = 0; first < head.tokens; first += kColumns) {
    I32 acc[R][2];
    clear(acc);
    multiply<Shorts, R>(reinterpret_cast<const uint8_t*>(head.queries), 2 * head.size_padded,
                        reinterpret_cast<const uint8_t*>(head.keys + first * head.size_padded), head.size_padded / 2,
                        acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t token = first + kLanes * half;
      const ptrdiff_t tokens = left(head.tokens, token);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Lanes counts = mask ? lanes_of(mask + r * mask_stride + token, tokens) : first_lanes(tokens);
        const F32 score = select(counts, floats(acc[r][half]), all(-INFINITY));
        store(head.scores + r * head.tokens_padded + token, score);
        highest[r] = max(highest[r], score);
      }
    }
  }
  // What is reduced to one number is so for all queries together: each alone would wait for itself.
  float tops[R], steps[R], factors[R];
  for (int r = 0; r < R; ++r) tops[r] = largest_of(highest[r]);
  F32 sums[R];
  for (int r = 0; r < R; ++r) {
    const F32 top = all(tops[r]), scale = all(scales[r] * kExponent);
    float* scores = head.scores + r * head.tokens_padded;
    sums[r] = all(0.0f);
    for (size_t token = 0; token < head.tokens_padded; token += kLanes) {
      const F32 power = power_of_two(fma(load(scores + token) - top, scale, all(127 * kExponent)));
      sums[r] += power;
      store(scores + token, power);
    }
  }
  for (int r = 0; r < R; ++r) {
    // Steps by the sum, not by the largest: beside one key with half of the attention, hundreds that share the other half
    // must not be rounded away.
    const float sum = sum_of(sums[r]);
    steps[r] = std::min(kMostSteps, head.probability_sum / sum);
    // A row without any key is zero, as ONNX Runtime has it.
    factors[r] = tops[r] == -INFINITY ? 0 : head.value_scale / (steps[r] * sum);
  }
  for (int r = 0; r < R; ++r) {
    const float* scores = head.scores + r * head.tokens_padded;
    for (size_t token = 0; token < head.tokens_padded; token += kColumns) {
      auto rounded = [&](size_t first) { return nearest_ints(load(scores + first) * all(steps[r])); };
      store(head.probabilities + r * head.tokens_padded + token,
            to_shorts_in_order(rounded(token), rounded(token + kLanes)));
    }
  }
  for (size_t first = 0; first < head.size; first += kColumns) {
    I32 acc[R][2];
    clear(acc);
    multiply<Shorts, R>(reinterpret_cast<const uint8_t*>(head.probabilities), 2 * head.tokens_padded,
                        reinterpret_cast<const uint8_t*>(head.values + 2 * first * head.pairs_of_tokens()),
                        head.pairs_of_tokens(), acc);
    auto part = [&](int r, int half) {
      const F32 scaled = fma(floats(acc[r][half]), all(factors[r]) * output.inverse_scale, output.zero_point);
      return nearest_ints(min(scaled, all(kMoreThanBytes)));
    };
#pragma GCC unroll 6
    for (int r = 0; r < R; r += 2) {
      const int next = r + 1 < R ? r + 1 : r;
      const I32 bytes = to_bytes(part(r, 0), part(r, 1), part(next, 0), part(next, 1));
      uint8_t* y = output.y + r * output.stride + first;
      store_bytes(y, bytes, 0, left(head.size, first));
      if (next > r) store_bytes(y + output.stride, bytes, 1, left(head.size, first));
    }
  }
}

using Attend = void (*)(Head&, const float*, const bool*, size_t, const Output&);

template <int... Rows>
Attend attend_of(size_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr Attend functions[] = {attend<Rows + 1>...};
  return functions[rows - 1];
}

}  // namespace

void Attention::run(uint8_t* y, Range output, const Threads& threads) const {
  const size_t width = heads * head_size, stride = 3 * width;
  const Mask kept(mask, batch, tokens);
  auto job = [&](size_t number) {
    static thread_local Scratch scratch;
    const size_t sequence = number / heads, column = number % heads * head_size;
    const float* queries = qkv + sequence * tokens * stride + column;
    Head head(kept.count(sequence), head_size, stride, scale, kept.any(sequence), scratch);
    head.pack_keys(queries + width);
    head.pack_values(queries + 2 * width);
    each_strip(tokens, [&](size_t first, size_t count) {
      const Output place = {y + (sequence * tokens + first) * width + column, width,
                            all(1 / output.scale), all(static_cast<float>(output.zero_point))};
      const Attend attend_them = attend_of(count, std::make_integer_sequence<int, kRows>{});
      attend_them(head, queries + first * stride, kept.from(sequence, first), tokens, place);
    });
  };
  if (tokens) threads.each(batch * heads, job);
}

}  // namespace bert
