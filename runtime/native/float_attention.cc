// Attention in floats.
#include <cmath>
#include <utility>

#include "attention.h"

namespace bert {

namespace {

// 2^x for x <= 0 or NaN, to 2e-7 of it: a power of two times a polynomial of what is left of x.
__m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
  const __m512 n = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);  // ln(2)^k / k!
  for (float coefficient : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
  return _mm512_scalef_ps(p, n);
}

// The keys and values of one head of one sequence, and room for the scores of a few queries.
struct Head {
  size_t tokens, size, stride;  // stride: floats from token to token
  size_t tokens_padded;
  float *keys, *values, *scores;

  Head(size_t tokens, size_t size, size_t stride, Scratch& scratch)
      : tokens(tokens), size(size), stride(stride), tokens_padded(round_up(tokens, 32)) {
    const size_t counts[] = {tokens_padded * round_up(size, 16), tokens * round_up(size, 32), kRows * tokens_padded};
    auto* memory = reinterpret_cast<float*>(scratch.take((counts[0] + counts[1] + counts[2]) * sizeof(float)));
    auto part = [&memory](size_t count) { return std::exchange(memory, memory + count); };
    keys = part(counts[0]);
    values = part(counts[1]);
    scores = part(counts[2]);
  }

  // keys [tokens, size] → panels of 32 tokens: [tokens / 32, size, 32]
  void pack_keys(const float* source) {
    const size_t rows_of_panel = round_up(size, 16);
    for (size_t first = 0; first < tokens_padded; first += 16)
      for (size_t i = 0; i < size; i += 16) {
        __m512i rows[16];
        for (size_t row = 0; row < 16; ++row)
          rows[row] = first + row < tokens ? _mm512_castps_si512(values_at(source + (first + row) * stride, size, i))
                                           : _mm512_setzero_si512();
        transpose(rows);
        float* panel = keys + first / 32 * 32 * rows_of_panel + i * 32 + first % 32;
        for (size_t row = 0; row < 16; ++row) _mm512_store_si512(panel + 32 * row, rows[row]);
      }
  }

  // values [tokens, size] → panels of 32 columns: [size / 32, tokens, 32]; zeros where no query attends, since what a
  // padded row holds, times 0, need not be 0
  void pack_values(const float* source, const bool* any) {
    for (size_t token = 0; token < tokens; ++token)
      for (size_t i = 0; i < round_up(size, 32); i += 16) {
        const bool counts = !any || any[token];
        _mm512_store_ps(values + (i / 32 * tokens + token) * 32 + i % 32,
                        counts ? values_at(source + token * stride, size, i) : _mm512_setzero_ps());
      }
  }
};

template <class T>
const uint8_t* bytes_of(const T* values) {
  return reinterpret_cast<const uint8_t*>(values);
}

// Scores of R queries, their softmax, and the sum of values it weights.
template <int R>
void attend(Head& head, const float* queries, float scale, const bool* mask, size_t mask_stride, float* y,
            size_t y_stride) {
  __m512 highest[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) highest[r] = _mm512_set1_ps(-INFINITY);
  const __m512 scale_of_all = _mm512_set1_ps(scale * 1.44269504f);  // scores are exponents of 2
  for (size_t first = 0; first < head.tokens; first += 32) {
    __m512i acc[R][2];
    clear(acc);
    multiply<Floats, R>(bytes_of(queries), head.stride * sizeof(float),
                        bytes_of(head.keys + first * round_up(head.size, 16)), head.size, acc);
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
        const __m512 score =
            _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), counts, Floats::floats(acc[r][half]), scale_of_all);
        _mm512_store_ps(head.scores + r * head.tokens_padded + token, score);
        highest[r] = _mm512_max_ps(highest[r], score);
      }
    }
  }
  // What is reduced to one number is so for all queries together: each alone would wait for itself.
  float tops[R], factors[R];
  for (int r = 0; r < R; ++r) tops[r] = _mm512_reduce_max_ps(highest[r]);
  __m512 sums[R];
  for (int r = 0; r < R; ++r) {
    float* scores = head.scores + r * head.tokens_padded;
    sums[r] = _mm512_setzero_ps();
    for (size_t token = 0; token < head.tokens_padded; token += 16) {
      const __m512 score = _mm512_load_ps(scores + token);
      const __mmask16 counts = _mm512_cmp_ps_mask(score, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
      const __m512 power = _mm512_maskz_mov_ps(counts, power_of_two(_mm512_sub_ps(score, _mm512_set1_ps(tops[r]))));
      sums[r] = _mm512_add_ps(sums[r], power);
      _mm512_store_ps(scores + token, power);
    }
  }
  // A row without any key is zero, as ONNX Runtime has it.
  for (int r = 0; r < R; ++r) factors[r] = tops[r] == -INFINITY ? 0 : 1 / _mm512_reduce_add_ps(sums[r]);
  for (size_t first = 0; first < head.size; first += 32) {
    __m512i acc[R][2];
    clear(acc);
    multiply<Floats, R>(bytes_of(head.scores), head.tokens_padded * sizeof(float),
                        bytes_of(head.values + first * head.tokens), head.tokens, acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t column = first + 16 * half;
      const __mmask16 lanes = lanes_below(head.size, column);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        _mm512_mask_storeu_ps(y + r * y_stride + column, lanes,
                              _mm512_mul_ps(Floats::floats(acc[r][half]), _mm512_set1_ps(factors[r])));
    }
  }
}

using Attend = void (*)(Head&, const float*, float, const bool*, size_t, float*, size_t);
constexpr Attend kAttend[kRows] = {attend<1>, attend<2>, attend<3>, attend<4>,  attend<5>,  attend<6>,
                                   attend<7>, attend<8>, attend<9>, attend<10>, attend<11>, attend<12>};

}  // namespace

void Attention::run(float* y, const Threads& threads) const {
  const size_t width = heads * head_size, stride = 3 * width;
  const Mask kept(mask, batch, tokens);
  auto job = [&](size_t number) {
    static thread_local Scratch scratch;
    const size_t sequence = number / heads, column = number % heads * head_size;
    const float* queries = qkv + sequence * tokens * stride + column;
    Head head(kept.count(sequence), head_size, stride, scratch);
    head.pack_keys(queries + width);
    head.pack_values(queries + 2 * width, kept.any(sequence));
    each_strip(tokens, [&](size_t first, size_t count) {
      kAttend[count - 1](head, queries + first * stride, scale, kept.from(sequence, first), tokens,
                         y + (sequence * tokens + first) * width + column, width);
    });
  };
  if (tokens) threads.each(batch * heads, job);
}

}  // namespace bert
