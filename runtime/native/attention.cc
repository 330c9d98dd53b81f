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
  __m512 most = _mm512_set1_ps(1e-30f);
  for (size_t row = 0; row < count; ++row, rows += stride) {
    for (size_t i = 0; i < size; i += 16) __builtin_prefetch(rows + kAhead * stride + i);
    if (kept && !kept[row]) continue;
    for (size_t i = 0; i < size; i += 16)
      most = _mm512_max_ps(_mm512_abs_ps(values_at(rows, size, i)), most);  // NaN does not count
  }
  return _mm512_reduce_max_ps(most);
}

// Thirty-two values from `first` on as 16-bit integers, in an order that is the same for queries and keys.
__m512i packed_at(const float* row, size_t size, size_t first, __m512 per_step) {
  return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(values_at(row, size, first), per_step)),
                            _mm512_cvtps_epi32(_mm512_mul_ps(values_at(row, size, first + 16), per_step)));
}

constexpr float kExponent = 8388608;  // 2²³, the lowest bit of a float's exponent as an integer

// 2^x, to 3e-6 of it, for x as a float's bits would have it: (x + 127) · kExponent. 0 below the smallest, and for NaN.
__m512 power_of_two(__m512 x) {
  const __m512i bits = _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512());
  const __m512i exponent = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f800000));
  // 1 and the fraction: (bits & 0x007fffff) | 1.0f
  const __m512 m = _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0x007fffff), _mm512_set1_epi32(0x3f800000), 0xea));
  __m512 p = _mm512_set1_ps(0.0135341678f);  // 2^(m - 1)
  for (float coefficient : {-0.00212521059f, 0.166613385f, 0.31201604f, 0.509964228f})
    p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(coefficient));
  return _mm512_mul_ps(p, _mm512_castsi512_ps(exponent));
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
      : tokens(tokens), size(size), stride(stride), size_padded(round_up(size, 32)),
        tokens_padded(round_up(tokens, 32)), scale(scale),
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

  // keys [tokens, size] → panels of 32 tokens: [tokens / 32, size / 2, 32, 2]
  void pack_keys(const float* source) {
    const float most = largest(source, tokens, size, stride, kept);
    const __m512 per_step = _mm512_set1_ps(query_steps / most);
    key_scale = most / query_steps;
    for (size_t first = 0; first < tokens_padded; first += 16)
      for (size_t i = 0; i < size_padded; i += 32) {
        __m512i rows[16];
        for (size_t row = 0; row < 16; ++row)
          rows[row] = first + row < tokens ? packed_at(source + (first + row) * stride, size, i, per_step)
                                           : _mm512_setzero_si512();
        transpose(rows);
        int16_t* panel = keys + (first / 32 * 32) * size_padded + (first % 32 + 16 * i) * 2;
        for (size_t pair = 0; pair < 16; ++pair) _mm512_store_si512(panel + 64 * pair, rows[pair]);
      }
  }

  // values [tokens, size] → panels of 32 columns: [size / 32, tokens / 2, 32, 2]
  void pack_values(const float* source) {
    const size_t pairs = pairs_of_tokens();
    const float most = largest(source, tokens, size, stride, kept);
    const __m512 per_step = _mm512_set1_ps(kValueSteps / most);
    value_scale = most / kValueSteps;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const float *even = source + 2 * pair * stride, *odd = even + stride;
      const size_t size_of_odd = 2 * pair + 1 < tokens ? size : 0;
      for (size_t i = 0; i < size_padded; i += 16) {
        const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(values_at(even, size, i), per_step));
        const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(values_at(odd, size_of_odd, i), per_step));
        // The lower halves of `low`, and those of `high` in the upper ones.
        const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
        _mm512_store_si512(values + 2 * ((i / 32 * pairs + pair) * 32 + i % 32), both);
      }
    }
  }
};

struct Output {
  uint8_t* y;  // of the first query
  size_t stride;
  __m512 inverse_scale, zero_point;
};

// Scores of R queries, their softmax, and the sum of values it weights.
template <int R>
void attend(Head& head, const float* queries, const bool* mask, size_t mask_stride, const Output& output) {
  float scales[R];
  for (int r = 0; r < R; ++r) {
    const float* query = queries + r * head.stride;
    const float most = largest(query, 1, head.size, head.stride, nullptr);
    const __m512 per_step = _mm512_set1_ps(head.query_steps / most);
    for (size_t i = 0; i < head.size; i += 32)
      _mm512_store_si512(head.queries + r * head.size_padded + i, packed_at(query, head.size, i, per_step));
    scales[r] = 1.44269504f * head.scale * head.key_scale * most / head.query_steps;  // scores are exponents of 2
  }
  __m512 highest[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) highest[r] = _mm512_set1_ps(-INFINITY);
  for (size_t first = 0; first < head.tokens; first += 32) {
    __m512i acc[R][2];
    clear(acc);
    multiply<Shorts, R>(reinterpret_cast<const uint8_t*>(head.queries), 2 * head.size_padded,
                        reinterpret_cast<const uint8_t*>(head.keys + first * head.size_padded), head.size_padded / 2,
                        acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t token = first + 16 * half;
      const __mmask16 lanes = lanes_below(head.tokens, token);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        __mmask16 counts = lanes;
        if (mask) {
          const __m128i kept = _mm_maskz_loadu_epi8(lanes, mask + r * mask_stride + token);
          counts = _mm_test_epi8_mask(kept, kept);
        }
        const __m512 score = _mm512_mask_cvtepi32_ps(_mm512_set1_ps(-INFINITY), counts, acc[r][half]);
        _mm512_store_ps(head.scores + r * head.tokens_padded + token, score);
        highest[r] = _mm512_max_ps(highest[r], score);
      }
    }
  }
  // What is reduced to one number is so for all queries together: each alone would wait for itself.
  float tops[R], steps[R], factors[R];
  for (int r = 0; r < R; ++r) tops[r] = _mm512_reduce_max_ps(highest[r]);
  __m512 sums[R];
  for (int r = 0; r < R; ++r) {
    const __m512 top = _mm512_set1_ps(tops[r]), scale = _mm512_set1_ps(scales[r] * kExponent);
    float* scores = head.scores + r * head.tokens_padded;
    sums[r] = _mm512_setzero_ps();
    for (size_t token = 0; token < head.tokens_padded; token += 16) {
      const __m512 below = _mm512_sub_ps(_mm512_load_ps(scores + token), top);
      const __m512 power = power_of_two(_mm512_fmadd_ps(below, scale, _mm512_set1_ps(127 * kExponent)));
      sums[r] = _mm512_add_ps(sums[r], power);
      _mm512_store_ps(scores + token, power);
    }
  }
  for (int r = 0; r < R; ++r) {
    // Steps by the sum, not by the largest: beside one key with half of the attention, hundreds that share the other half
    // must not be rounded away.
    const float sum = _mm512_reduce_add_ps(sums[r]);
    steps[r] = std::min(kMostSteps, head.probability_sum / sum);
    // A row without any key is zero, as ONNX Runtime has it.
    factors[r] = tops[r] == -INFINITY ? 0 : head.value_scale / (steps[r] * sum);
  }
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // packing takes turns, 128 bits of each
  for (int r = 0; r < R; ++r) {
    const float* scores = head.scores + r * head.tokens_padded;
    for (size_t token = 0; token < head.tokens_padded; token += 32) {
      auto rounded = [&](size_t first) {
        return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(scores + first), _mm512_set1_ps(steps[r])));
      };
      const __m512i packed = _mm512_packs_epi32(rounded(token), rounded(token + 16));
      _mm512_store_si512(head.probabilities + r * head.tokens_padded + token, _mm512_permutexvar_epi64(order, packed));
    }
  }
  for (size_t first = 0; first < head.size; first += 32) {
    __m512i acc[R][2];
    clear(acc);
    multiply<Shorts, R>(reinterpret_cast<const uint8_t*>(head.probabilities), 2 * head.tokens_padded,
                        reinterpret_cast<const uint8_t*>(head.values + 2 * first * head.pairs_of_tokens()),
                        head.pairs_of_tokens(), acc);
    const size_t left = head.size - first;
    const __mmask32 lanes = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
    auto part = [&](int r, int half) {
      const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(factors[r]), output.inverse_scale);
      const __m512 scaled = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][half]), factor, output.zero_point);
      return _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(kMoreThanBytes)));
    };
#pragma GCC unroll 6
    for (int r = 0; r < R; r += 2) {
      const int next = r + 1 < R ? r + 1 : r;
      const __m512i bytes = to_bytes(part(r, 0), part(r, 1), part(next, 0), part(next, 1));
      uint8_t* y = output.y + r * output.stride + first;
      _mm256_mask_storeu_epi8(y, lanes, _mm512_castsi512_si256(bytes));
      if (next > r) _mm256_mask_storeu_epi8(y + output.stride, lanes, _mm512_extracti64x4_epi64(bytes, 1));
    }
  }
}

using Attend = void (*)(Head&, const float*, const bool*, size_t, const Output&);
constexpr Attend kAttend[kRows] = {attend<1>, attend<2>, attend<3>, attend<4>,  attend<5>,  attend<6>,
                                   attend<7>, attend<8>, attend<9>, attend<10>, attend<11>, attend<12>};

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
                            _mm512_set1_ps(1 / output.scale), _mm512_set1_ps(output.zero_point)};
      kAttend[count - 1](head, queries + first * stride, kept.from(sequence, first), tokens, place);
    });
  };
  if (tokens) threads.each(batch * heads, job);
}

}  // namespace bert
