// Calls the kernels with random shapes, values and alignments, and compares them with plain C++ in double precision.
//
//   harness CASES SEED CALLERS
//
// Each of CALLERS threads runs CASES cases; with more than one, each kernel has threads of its own, too. The exit
// status is 1 if a case fails. test_sanitizers.py builds it with sanitizers, for each instruction set.
#include "harness.h"

#include <algorithm>

#include "cpu_features.h"

using namespace bert;
using namespace harness;

namespace {

double gelu(double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }
double saturate(double steps) { return std::min(255.0, std::max(0.0, steps)); }

// A linear layer x [rows, K] → [rows, N], with the sums that its outputs are compared with.
template <class Input, class Weight>
struct LinearCase {
  static constexpr bool kIsInt8 = sizeof(Weight) == 1, kIsBf16 = sizeof(Weight) == 2;
  size_t rows, K, N;
  bool ends_at_page, is_7_bit;
  QuantParams input;
  Guarded<Input> x;
  Guarded<Weight> weight;
  Guarded<float> scales, bias;

  explicit LinearCase(Random& random)
      : rows(random.one_in(10) ? 0 : random.size(160)),
        K(random.size(random.one_in(8) ? 1600 : 304)),
        N(random.size(random.one_in(8) ? 1600 : 304)),
        ends_at_page(random.one_in(2)),
        is_7_bit(random.one_in(2)),
        input{0.02F, static_cast<uint8_t>(random.integer(0, 255))},
        x(rows * (K = kIsInt8 ? (K + 3) / 4 * 4 : K), ends_at_page, random.integer(0, 3)),
        weight(K * N, ends_at_page),
        scales(N, ends_at_page),
        bias(N, ends_at_page) {
    const int max_weight = is_7_bit ? 64 : 127;
    if constexpr (kIsInt8) {
      const bool extreme = random.one_in(4);
      x.fill([&](size_t) { return extreme ? 255 : random.integer(0, 255); });
      weight.fill([&](size_t) { return static_cast<int>(random.integer(0, 2 * max_weight)) - max_weight; });
    } else {
      x.fill([&](size_t) { return random.normal(); });
      weight.fill([&](size_t) {
        const float element = random.normal() / std::sqrt(static_cast<float>(K));
        if constexpr (kIsBf16)
          return to_bf16(element);
        else
          return element;
      });
    }
    // Outputs of about -6 to 6.
    const float scale =
        6 / (input.scale * 75 * 0.6F * static_cast<float>(max_weight) * std::sqrt(static_cast<float>(K)));
    scales.fill([&](size_t) { return scale * static_cast<float>(random.integer(1, 10)) / 10; });
    bias.fill([&](size_t) { return random.normal(); });
  }

  Linear<Input, Weight> layer(float output_scale = 1) const {
    if constexpr (kIsInt8)
      return {weight.data(), scales.data(), bias.data(), K, N, input, output_scale};
    else
      return {weight.data(), nullptr, bias.data(), K, N};
  }
  // The sum of an output, and the error that float32 arithmetic may have.
  void expected(size_t row, size_t column, double& sum, double& tolerance) const {
    double total = 0, magnitude = 0;
    for (size_t k = 0; k < K; ++k) {
      const Input element = x.get(row * K + k);
      const double zero_point = kIsInt8 ? input.zero_point : 0, value = kIsBf16 ? value_of(to_bf16(element)) : element;
      const double factor = value_of(weight.get(k * N + column));
      total += (value - zero_point) * factor;
      magnitude += (std::abs(value) + zero_point) * std::abs(factor);
    }
    const double scale = kIsInt8 ? static_cast<double>(input.scale) * scales.get(column) : 1;
    sum = scale * total + bias.get(column);
    tolerance = 3e-6 * (scale * magnitude + std::abs(bias.get(column))) + 2e-6;
  }
  // Compares some outputs: is_near(row, column, sum, tolerance).
  template <class F>
  void compare(Random& random, const char* what, bool is_whole, const F& is_near) const {
    if (!is_whole) fail("%s wrote beyond its output: rows %zu, K %zu, N %zu", what, rows, K, N);
    for (size_t i = 0; rows && i < 60; ++i) {
      const size_t row = random.integer(0, rows - 1), column = i % 2 ? random.integer(0, N - 1) : N - 1 - i % N;
      double sum, tolerance;
      expected(row, column, sum, tolerance);
      if (!is_near(row, column, sum, tolerance))
        return fail("%s, rows %zu, K %zu, N %zu, 7 bits %d: [%zu, %zu] is not of sum %g", what, rows, K, N, is_7_bit,
                    row, column, sum);
    }
  }
};

template <class Input, class Weight>
void check_linear(Random& random, const ThreadPool& threads, bool with_gelu) {
  const LinearCase<Input, Weight> linear(random);
  const Guarded<float> y(linear.rows * linear.N, linear.ends_at_page, random.integer(0, 3));
  if constexpr (linear.kIsInt8)
    linear.layer().matmul(linear.x.data(), linear.rows, y.data(), threads);
  else if (with_gelu)
    linear.layer().matmul_gelu(linear.x.data(), linear.rows, y.data(), threads);
  else
    linear.layer().matmul(linear.x.data(), linear.rows, y.data(), threads);
  linear.compare(random,
                 linear.kIsInt8 ? "int8 matmul"
                 : with_gelu    ? "matmul + GELU"
                                : "matmul",
                 y.is_surrounded_by_pattern(), [&](size_t row, size_t column, double sum, double tolerance) {
                   return std::abs((with_gelu ? gelu(sum) : sum) - y.get(row * linear.N + column)) <= tolerance;
                 });
}

// The maximum over the tokens of sequences with random masks, of which some have no token at all.
template <class Input, class Weight>
void check_vocabulary_max(Random& random, const ThreadPool& threads) {
  const LinearCase<Input, Weight> linear(random);
  const size_t batch = linear.rows ? random.integer(1, std::min<size_t>(linear.rows, 4)) : 0;
  const size_t tokens = batch ? linear.rows / batch : 0, kind = random.integer(0, 3);
  Guarded<int64_t> mask(batch * tokens, linear.ends_at_page);
  mask.fill([&](size_t index) {
    const bool kinds[] = {true, index % tokens < tokens / 2 + 1, !random.one_in(3), random.one_in(10)};
    return kinds[kind] ? int64_t{1} : int64_t{0};
  });
  const Guarded<float> y(batch * linear.N, linear.ends_at_page, random.integer(0, 3));
  linear.layer().matmul_max(linear.x.data(), TokenMask{{batch, tokens, nullptr}, mask.data()}, y.data(), threads);
  if (!y.is_surrounded_by_pattern()) fail("the vocabulary's maximum wrote beyond its output");
  for (size_t i = 0; batch && i < 30; ++i) {
    const size_t sequence = random.integer(0, batch - 1), column = i % 2 ? random.integer(0, linear.N - 1) : 0;
    double best = 0, allowed = 2e-6;
    for (size_t token = 0; token < tokens; ++token) {
      double sum, tolerance;
      if (!mask.get(sequence * tokens + token)) continue;
      linear.expected(sequence * tokens + token, column, sum, tolerance);
      best = std::max(best, sum);
      allowed = std::max(allowed, tolerance);
    }
    if (!(std::abs(best - y.get(sequence * linear.N + column)) <= allowed))
      return fail("vocabulary's maximum, batch %zu, tokens %zu, K %zu, N %zu: [%zu, %zu] is not %g", batch, tokens,
                  linear.K, linear.N, sequence, column, best);
  }
}

void check_quantized_gelu(Random& random, const ThreadPool& threads) {
  const LinearCase<uint8_t, int8_t> linear(random);
  const QuantParams output = {0.03F, static_cast<uint8_t>(random.integer(0, 255))};
  const Guarded<uint8_t> y(linear.rows * linear.N, linear.ends_at_page, random.integer(0, 3));
  linear.layer(output.scale).matmul_gelu(linear.x.data(), linear.rows, y.data(), QuantizedGelu(output), threads);
  linear.compare(random, "int8 matmul + GELU", y.is_surrounded_by_pattern(),
                 [&](size_t row, size_t column, double sum, double tolerance) {
                   const double steps = saturate(gelu(sum) / output.scale + output.zero_point);
                   return std::abs(steps - y.get(row * linear.N + column)) <=
                          0.5 + (1e-4 + 1.2 * tolerance) / output.scale + 1e-3;
                 });
}

// Gates are the first half of the columns, ups the second: activation(gate) · up.
template <class Input, class Weight>
void check_gated(Random& random, const ThreadPool& threads) {
  const Gate gate_activation = random.integer(0, 1) ? Gate::kSilu : Gate::kGelu;
  LinearCase<Input, Weight> linear(random);
  const GatedColumns order = {linear.N / 2};
  if (!order.columns) return;
  const size_t columns = order.count(), stride = linear.N;
  Guarded<Weight> weight(linear.K * columns, linear.ends_at_page);
  Guarded<float> scales(columns, linear.ends_at_page), bias(columns, linear.ends_at_page);
  auto at = [&](size_t column) { return order.source(column); };  // the last of an odd number of columns is left out
  weight.fill([&](size_t index) {
    const ptrdiff_t source = at(index % columns);
    return source < 0 ? Weight{0} : linear.weight.get(index / columns * stride + source);
  });
  scales.fill([&](size_t column) { return at(column) < 0 ? 0 : linear.scales.get(at(column)); });
  bias.fill([&](size_t column) { return at(column) < 0 ? 0 : linear.bias.get(at(column)); });
  const QuantParams output = {0.2F, static_cast<uint8_t>(random.integer(0, 255))};
  using Output = std::conditional_t<sizeof(Weight) == 1, uint8_t, float>;
  const Guarded<Output> y(linear.rows * order.columns, linear.ends_at_page, random.integer(0, 3) * sizeof(Output));
  if constexpr (sizeof(Weight) == 1)
    Linear<Input, Weight>(weight.data(), scales.data(), bias.data(), linear.K, columns, linear.input)
        .matmul_gated(gate_activation, linear.x.data(), linear.rows, order.columns, y.data(), output, threads);
  else
    Linear<Input, Weight>(weight.data(), nullptr, bias.data(), linear.K, columns)
        .matmul_gated(gate_activation, linear.x.data(), linear.rows, order.columns, y.data(), threads);
  if (!y.is_surrounded_by_pattern()) fail("gated matmul wrote beyond its output: rows %zu, N %zu", linear.rows, stride);
  for (size_t i = 0; linear.rows && i < 60; ++i) {
    const size_t row = random.integer(0, linear.rows - 1), column = random.integer(0, order.columns - 1);
    double gate, up, gate_error, up_error;
    linear.expected(row, column, gate, gate_error);
    linear.expected(row, column + order.columns, up, up_error);
    const double value = (gate_activation == Gate::kSilu ? gate / (1 + std::exp(-gate)) : gelu(gate)) * up;
    const double error = 1.2 * (gate_error + 1e-6) * (std::abs(up) + 1) + 1.2 * up_error * (std::abs(gate) + 1);
    const double found = y.get(row * order.columns + column);
    const bool is_near = sizeof(Weight) == 1 ? std::abs(saturate(value / output.scale + output.zero_point) - found) <=
                                                   0.5 + error / output.scale + 1e-3
                                             : std::abs(value - found) <= error;
    if (!is_near)
      return fail("gated matmul, rows %zu, K %zu, N %zu: [%zu, %zu] is not near %g", linear.rows, linear.K, stride, row,
                  column, value);
  }
}

// Attention with a random mask; NaN, infinity or huge values where no query attends to. Its rows may be packed.
struct AttentionCase {
  bool is_long;  // so long that a head is divided among several jobs
  size_t batch, tokens, num_heads, head_size, width;
  bool ends_at_page, is_masked, is_rotary;
  size_t mask_rows, window;
  float spread;
  Guarded<float> qkv;  // [batch, tokens, 3 · width]
  Guarded<uint8_t> mask;
  bool has_bias;
  Guarded<float> bias, cos, sin;
  bool has_positions;
  size_t max_tokens, num_positions;
  Guarded<float> position_keys, position_queries;  // [num_heads, num_positions, head_size]
  std::vector<int64_t> key_indices, query_indices;
  bool is_packed;
  std::vector<size_t> starts;  // [batch + 1], the first row of each sequence

  explicit AttentionCase(Random& random)
      : is_long(random.one_in(25)),
        batch(is_long             ? 1
              : random.one_in(12) ? 0
                                  : random.integer(1, 3)),
        tokens(is_long             ? random.integer(256, 300)
               : random.one_in(15) ? 0
                                   : random.integer(1, random.one_in(4) ? 150 : 48)),
        num_heads(is_long ? 2 * random.integer(0, 1) + 1 : random.integer(1, 4)),  // odd: of two threads, one gets more
        head_size(!is_long && random.one_in(3) ? random.integer(1, 256) : random.size(64)),
        width(num_heads * head_size),
        ends_at_page(random.one_in(2)),
        is_masked(!random.one_in(4)),
        is_rotary(head_size % 2 == 0 && !random.one_in(3)),
        mask_rows(is_rotary || random.one_in(3) ? 1 : tokens),
        window(is_rotary && random.one_in(2) ? random.integer(1, 40) : 0),
        spread(random.one_in(5) ? 4 : 1),
        qkv(batch * tokens * 3 * width, ends_at_page, random.integer(0, 3) * 4),
        mask(batch * mask_rows * tokens, ends_at_page, random.integer(0, 5)),
        has_bias(!is_rotary && random.one_in(2)),
        bias(tokens ? num_heads * (2 * tokens - 1) : 0, ends_at_page, random.integer(0, 3) * 4),
        cos(tokens * head_size / 2, ends_at_page, random.integer(0, 3) * 4),
        sin(tokens * head_size / 2, ends_at_page, random.integer(0, 3) * 4),
        has_positions(!is_rotary && !has_bias && random.one_in(2)),
        max_tokens(std::max<size_t>(tokens, 1) + (random.one_in(2) ? random.integer(0, 40) : 0)),
        num_positions(random.integer(1, 60)),
        position_keys(width * num_positions, ends_at_page, random.integer(0, 3) * 4),
        position_queries(width * num_positions, ends_at_page, random.integer(0, 3) * 4) {
    for (Guarded<float>* positions : {&position_keys, &position_queries})
      positions->fill([&](size_t) { return random.normal() / std::sqrt(static_cast<float>(head_size)) * spread; });
    for (std::vector<int64_t>* indices : {&key_indices, &query_indices})
      for (size_t i = 0; i < 2 * max_tokens; ++i)
        indices->push_back(static_cast<int64_t>(random.integer(0, num_positions - 1)));
    cos.fill([&](size_t index) { return std::cos(0.1F * static_cast<float>(index)); });
    sin.fill([&](size_t index) { return std::sin(0.1F * static_cast<float>(index)); });
    bias.fill([&](size_t) { return random.normal() * spread; });
    qkv.fill([&](size_t) { return random.normal() * spread; });
    const size_t kind = random.integer(0, 4), length = random.integer(0, tokens);
    mask.fill([&](size_t index) {
      const size_t query = mask_rows == 1 ? tokens : index / tokens % tokens, key = index % tokens;
      const bool kinds[] = {key < length, key <= query, !random.one_in(4), key >= tokens - length, random.one_in(8)};
      return kinds[kind] ? random.integer(1, 255) : 0;  // any byte but 0 stands for true
    });
    if (is_masked && random.one_in(3)) poison();
    is_packed = is_masked && mask_rows == 1 && random.one_in(2);
    starts.push_back(0);
    for (size_t sequence = 0; sequence < batch; ++sequence) {
      size_t count = tokens;
      while (is_packed && count > 1 && !mask.get(sequence * tokens + count - 1)) --count;
      starts.push_back(starts.back() + count);
    }
  }
  // qkv, without the rows that packing leaves out
  void copy_rows(Guarded<float>& rows) const {
    for (size_t sequence = 0; sequence < batch; ++sequence)
      for (size_t i = 0; i < (starts[sequence + 1] - starts[sequence]) * 3 * width; ++i)
        rows.set(starts[sequence] * 3 * width + i, qkv.get(sequence * tokens * 3 * width + i));
  }
  bool attends(size_t sequence, size_t query, size_t key) const {
    const bool is_near = !window || (query > key ? query - key : key - query) <= window;
    return is_near && (!is_masked || mask.get((sequence * mask_rows + (mask_rows == 1 ? 0 : query)) * tokens + key));
  }
  void poison() {
    const float values[] = {NAN, INFINITY, -3e38F};
    for (size_t sequence = 0; sequence < batch; ++sequence)
      for (size_t key = 0; key < tokens; ++key) {
        bool any = false;
        for (size_t query = 0; query < tokens; ++query) any |= attends(sequence, query, key);
        for (size_t i = width; !any && i < 3 * width; ++i)
          qkv.set((sequence * tokens + key) * 3 * width + i, values[i % 3]);
      }
  }
  float get(size_t sequence, size_t token, size_t part, size_t element) const {
    return qkv.get(((sequence * tokens + token) * 3 + part) * width + element);
  }
  // A query (part 0) or key (part 1), rotated by its position if the case has rotations.
  double rotated(size_t sequence, size_t token, size_t part, size_t element) const {
    if (!is_rotary) return get(sequence, token, part, element);
    const size_t half = head_size / 2, i = element % head_size, at = token * half + i % half;
    const double x = get(sequence, token, part, element);
    const double other = get(sequence, token, part, i < half ? element + half : element - half);
    return x * cos.get(at) + (i < half ? -other : other) * sin.get(at);
  }
  double bias_of(size_t query, size_t key, size_t head) const {
    return has_bias ? double{bias.get(head * (2 * tokens - 1) + tokens - 1 + key - query)} : 0;
  }
  double positions_of(size_t sequence, size_t query, size_t key, size_t head) const {
    double sum = 0;
    const auto key_position = static_cast<size_t>(key_indices[max_tokens - 1 - query + key]);
    const auto query_position = static_cast<size_t>(query_indices[max_tokens - 1 - key + query]);
    for (size_t i = 0; has_positions && i < head_size; ++i) {
      const size_t element = head * head_size + i, row = head * num_positions;
      sum += double{get(sequence, query, 0, element)} * position_keys.get((row + key_position) * head_size + i) +
             double{get(sequence, key, 1, element)} * position_queries.get((row + query_position) * head_size + i);
    }
    return sum;
  }
  // softmax(query · keys · scale + bias) · values for one query of a head: [head_size]
  std::vector<double> expected(size_t sequence, size_t query, size_t head, double scale) const {
    std::vector<double> weights(tokens, 0), y(head_size, 0);
    double maximum = -INFINITY, sum = 0;
    for (size_t key = 0; key < tokens; ++key) {
      if (!attends(sequence, query, key)) continue;
      weights[key] = bias_of(query, key, head) + positions_of(sequence, query, key, head);
      for (size_t i = head * head_size; i < (head + 1) * head_size; ++i)
        weights[key] += scale * rotated(sequence, query, 0, i) * rotated(sequence, key, 1, i);
      maximum = std::max(maximum, weights[key]);
    }
    for (size_t key = 0; key < tokens; ++key) {
      weights[key] = attends(sequence, query, key) ? std::exp(weights[key] - maximum) : 0;
      sum += weights[key];
    }
    for (size_t key = 0; key < tokens; ++key)
      for (size_t i = 0; weights[key] > 0 && i < head_size; ++i)
        y[i] += weights[key] / sum * get(sequence, key, 2, head * head_size + i);
    return y;
  }
  // Compares some queries: difference(index, value) of each output.
  template <class F>
  void compare(Random& random, const char* what, bool is_whole, double scale, double tolerance, const F& difference) {
    if (!is_whole) fail("%s wrote beyond its output", what);
    for (size_t i = 0; batch > 0 && tokens > 0 && i < 6; ++i) {
      const size_t sequence = random.integer(0, batch - 1), last = starts[sequence + 1] - starts[sequence] - 1;
      const size_t query = i ? random.integer(0, last) : last;
      const size_t head = random.integer(0, num_heads - 1);
      const std::vector<double> y = expected(sequence, query, head, scale);
      for (size_t element = 0; element < head_size; ++element)
        if (!(difference((starts[sequence] + query) * width + head * head_size + element, y[element]) <= tolerance))
          return fail(
              "%s, batch %zu, tokens %zu, heads %zu × %zu, masked %d, packed %d, bias %d, positions %d, rotary %d, "
              "window %zu, "
              "spread %g: query "
              "%zu is not near %g",
              what, batch, tokens, num_heads, head_size, is_masked, is_packed, has_bias, has_positions, is_rotary,
              window, static_cast<double>(spread), query, y[element]);
    }
  }
};

void check_attention(Random& random, const ThreadPool& threads) {
  AttentionCase attention(random);
  const float scale = 1 / std::sqrt(static_cast<float>(attention.head_size));
  const size_t size = attention.starts.back() * attention.width;
  Guarded<float> qkv(3 * size, attention.ends_at_page, random.integer(0, 3) * 4);
  attention.copy_rows(qkv);
  const Attention kernel = {
      {attention.batch, attention.tokens, attention.is_packed ? attention.starts.data() : nullptr},
      attention.num_heads,
      attention.head_size,
      scale,
      qkv.data(),
      attention.is_masked ? attention.mask.data() : nullptr,
      attention.mask_rows,
      attention.has_bias ? attention.bias.data() : nullptr,
      {attention.is_rotary ? attention.cos.data() : nullptr, attention.sin.data()},
      attention.window};
  const double spread = attention.spread;
  const auto tables = [&](auto element) {
    return PositionTables<decltype(element)>(attention.position_keys.data(), attention.position_queries.data(),
                                             attention.key_indices.data(), attention.query_indices.data(),
                                             attention.num_heads, attention.num_positions, attention.head_size,
                                             attention.max_tokens);
  };
  const PositionTables<float> float_tables = tables(float{});
  const PositionTables<int16_t> int16_tables = tables(int16_t{});
  const bool has_positions = attention.has_positions;
  const Guarded<float> y(size, attention.ends_at_page, random.integer(0, 3) * 4);
  kernel.compute(y.data(), threads, has_positions ? &float_tables : nullptr);
  attention.compare(random, "float32 attention", y.is_surrounded_by_pattern(), scale, 2e-5 * spread * spread,
                    [&](size_t index, double value) { return std::abs(value - y.get(index)); });
#ifdef BERT_BF16
  const Guarded<float> rounded(size, attention.ends_at_page, random.integer(0, 3) * 4);
  kernel.compute_bf16(rounded.data(), threads, has_positions ? &float_tables : nullptr);
  attention.compare(random, "bfloat16 attention", rounded.is_surrounded_by_pattern(), scale,
                    0.02 * spread * (1 + spread * spread),
                    [&](size_t index, double value) { return std::abs(value - rounded.get(index)); });
#endif
  const QuantParams output = {0.02F * attention.spread, 128};
  const Guarded<uint8_t> quantized(size, attention.ends_at_page, random.integer(0, 3));
  kernel.compute(quantized.data(), output, threads, has_positions ? &int16_tables : nullptr);
  attention.compare(random, "quantized attention", quantized.is_surrounded_by_pattern(), scale, spread > 1 ? 3 : 1.01,
                    [&](size_t index, double value) {
                      return std::abs(saturate(value / output.scale + output.zero_point) - quantized.get(index));
                    });
}

void check_layer_norm(Random& random, const ThreadPool& threads) {
  const size_t rows = random.one_in(10) ? 0 : random.size(64), columns = 1 + random.size(1104);
  const bool ends_at_page = random.one_in(2);
  Guarded<float> x(rows * columns, ends_at_page, random.integer(0, 3) * 4), residual(rows * columns, ends_at_page);
  Guarded<float> gamma(columns, ends_at_page), beta(columns, ends_at_page), smoothing(columns, ends_at_page);
  x.fill([&](size_t) { return random.normal() * 2 + 3; });
  for (Guarded<float>* vector : {&residual, &beta}) vector->fill([&](size_t) { return random.normal(); });
  for (Guarded<float>* vector : {&gamma, &smoothing}) vector->fill([&](size_t) { return 1 + 0.3F * random.normal(); });
  const Guarded<float> y(rows * columns, ends_at_page, random.integer(0, 3) * 4);
  const Guarded<uint8_t> quantized(rows * columns, ends_at_page, random.integer(0, 3));
  const QuantParams output = {0.03F, 100};
  const bool is_pre_norm = random.one_in(2);
  const AddLayerNorm kernel = {rows,        columns,          x.data(), residual.data(), gamma.data(),
                               beta.data(), smoothing.data(), 1e-12F,   is_pre_norm};
  kernel.compute(y.data(), quantized.data(), output, threads);
  if (!y.is_surrounded_by_pattern() || !quantized.is_surrounded_by_pattern())
    fail("LayerNorm wrote beyond its output: rows %zu, columns %zu", rows, columns);
  for (size_t i = 0; rows && i < 4; ++i) {
    const size_t first = random.integer(0, rows - 1) * columns;
    auto sum = [&](size_t column) { return double{x.get(first + column) + residual.get(first + column)}; };
    double mean = 0, variance = 0;
    for (size_t column = 0; column < columns; ++column) mean += sum(column) / static_cast<double>(columns);
    for (size_t column = 0; column < columns; ++column)
      variance += (sum(column) - mean) * (sum(column) - mean) / static_cast<double>(columns);
    const double tolerance = 2e-5 * (1 + 8 / std::sqrt(variance));  // of sums that are nearly equal, little is left
    for (size_t column = 0; column < columns; ++column) {
      const double value = (sum(column) - mean) / std::sqrt(variance) * gamma.get(column) + beta.get(column);
      const double steps = saturate(value * smoothing.get(column) / output.scale + output.zero_point);
      const double first_output = is_pre_norm ? sum(column) : value;
      if (!(std::abs(first_output - y.get(first + column)) <= tolerance * (1 + std::abs(value))) ||
          !(std::abs(steps - quantized.get(first + column)) <= 0.5 + 50 * tolerance * (1 + std::abs(value))))
        return fail("LayerNorm, rows %zu, columns %zu: not near %g, %g steps", rows, columns, value, steps);
    }
  }
}

// A task that throws must not end the pool's threads, nor the others' tasks.
void check_exceptions(const ThreadPool& threads) {
  std::atomic<size_t> calls{0};
  auto task = [&](size_t index) {
    ++calls;
    if (index % 2) throw std::bad_alloc();
  };
  try {
    threads.parallel_for(10, task);
    fail("parallel_for drops exceptions");
  } catch (const std::bad_alloc&) {
    if (calls != 10) fail("parallel_for made %zu of 10 calls", calls.load());
  }
  const ThreadPool without_memory = {nullptr, [](void*, Task, void*, size_t) { return false; }};
  try {
    without_memory.parallel_for(10, task);
    fail("parallel_for drops the failures of a pool");
  } catch (const std::bad_alloc&) {
  }
}

void run_cases(unsigned cases, unsigned seed, const ThreadPool& threads) {
  for (unsigned index = 0; index < cases; ++index) {
    Random random(seed * 1000003U + index);
#ifdef BERT_BF16
    if (index % 3 == 0) {
      check_linear<float, BFloat16>(random, threads, random.one_in(2));
      check_gated<float, BFloat16>(random, threads);
      check_vocabulary_max<float, BFloat16>(random, threads);
    }
#endif
    switch (index % 9) {
      case 0:
        check_linear<uint8_t, int8_t>(random, threads, false);
        break;
      case 1:
        check_linear<float, float>(random, threads, random.one_in(2));
        break;
      case 2:
        check_quantized_gelu(random, threads);
        break;
      case 3:
        check_layer_norm(random, threads);
        break;
      case 4:
        if (random.one_in(2))
          check_gated<uint8_t, int8_t>(random, threads);
        else
          check_gated<float, float>(random, threads);
        break;
      case 5:
        check_vocabulary_max<uint8_t, int8_t>(random, threads);
        break;
      case 6:
        check_vocabulary_max<float, float>(random, threads);
        break;
      default:
        check_attention(random, threads);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
#ifdef BERT_AMX
  if (!has_amx()) fail("the system does not let this process use AMX");
#endif
  if (argc != 4) return 2;
  const auto cases = static_cast<unsigned>(std::atoi(argv[1])), seed = static_cast<unsigned>(std::atoi(argv[2]));
  const auto num_callers = static_cast<unsigned>(std::atoi(argv[3]));
  const ThreadPool threads = {nullptr, num_callers > 1 ? run_in_parallel : run_serially};
  check_exceptions(threads);
  std::vector<std::thread> callers;
  // Two callers have the same cases, and thus share their packed weights.
  for (unsigned caller = 0; caller < num_callers; ++caller)
    callers.emplace_back([=] { run_cases(cases, seed + caller / 2, threads); });
  for (std::thread& caller : callers) caller.join();
  std::printf("%u callers, %u cases each, seed %u: %d failures\n", num_callers, cases, seed, num_failures.load());
  return num_failures ? 1 : 0;
}
