// Products of bytes by a weight that was packed once.
#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels.h"
#include "simd.h"

namespace bert {

void Free::operator()(void* memory) const { std::free(memory); }
void* allocate(size_t bytes) {
  void* memory = std::aligned_alloc(64, round_up(std::max<size_t>(bytes, 64), 64));
  if (!memory) std::abort();  // as the containers here do without exceptions
  return memory;
}

namespace {

// Rows of one job: few enough for their bytes to stay in the second-level cache while the weight passes by.
constexpr size_t kBlock = 8 * kRows;
// Panels of one job where there are few rows, so that all threads have a share.
constexpr size_t kFewPanels = 2;

struct Place {
  size_t row, column;
  ptrdiff_t columns;     // valid from there
  const uint8_t* ahead;  // of the next panel, the part that this strip asks the caches for
};

template <int R, int Lines, class Finish>
void strip(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps, const float* scales, const float* bias,
           const Place& place, const Finish& finish) {
  finish.template expect<R>(place);
  __m512i acc[R][2];
  multiply<Bytes, R, Lines>(a, stride, panel, steps, acc, place.ahead);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __mmask16 lanes = first_lanes(place.columns - 16 * half);
    if (!lanes) break;
    const __m512 scale = _mm512_load_ps(scales + 16 * half), offset = _mm512_load_ps(bias + 16 * half);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      finish(_mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][half]), scale, offset), place.row + r, place.column + 16 * half,
             lanes);
  }
}

template <class Finish>
using Strip = void (*)(const uint8_t*, size_t, const uint8_t*, size_t, const float*, const float*, const Place&,
                       const Finish&);

template <class Finish, int Lines, int... Rows>
Strip<Finish> strip_of(size_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr Strip<Finish> strips[] = {strip<Rows + 1, Lines, Finish>...};
  return strips[rows - 1];
}

// The next panel has two lines for each group: a strip that is alone asks for both, of several each for one of them.
template <class Finish>
Strip<Finish> strip_of(size_t rows, bool alone) {
  constexpr std::make_integer_sequence<int, kRows> counts;
  return alone ? strip_of<Finish, 2>(rows, counts) : strip_of<Finish, 1>(rows, counts);
}

struct StoreFloats {
  float* y;
  size_t columns;
  template <int R>
  void expect(const Place& place) const {
    prefetch<R>(y + place.row * columns + place.column, columns * sizeof(float), kColumns * sizeof(float));
  }
  void operator()(__m512 value, size_t row, size_t column, __mmask16 lanes) const {
    _mm512_mask_storeu_ps(y + row * columns + column, lanes, value);
  }
};

struct StoreGelu {
  uint8_t* y;
  size_t columns;
  __m512 inverse_scale;
  __m512i zero_point;
  template <int R>
  void expect(const Place& place) const {
    prefetch<R>(y + place.row * columns + place.column, columns, 1);
  }
  void operator()(__m512 x, size_t row, size_t column, __mmask16 lanes) const {
    // x·Φ(x), with Φ(x) - 1/2 as x times a polynomial of x² (Chebyshev fit on |x| <= 4.5, 1 beyond it but for 5e-6).
    x = _mm512_max_ps(x, _mm512_set1_ps(-4.5f));  // where x·Φ(x) is -1.5e-5
    const __m512 inner = _mm512_min_ps(x, _mm512_set1_ps(4.5f));
    const __m512 u = _mm512_fmsub_ps(_mm512_mul_ps(inner, inner), _mm512_set1_ps(2 / (4.5f * 4.5f)), _mm512_set1_ps(1));
    __m512 p = _mm512_set1_ps(0.0031714232f);
    for (float coefficient : {-0.00915404742f, 0.0124481528f, -0.0169704506f, 0.0275425015f, -0.0404758057f,
                              0.0548263114f, -0.0771785539f, 0.156902083f})
      p = _mm512_fmadd_ps(p, u, _mm512_set1_ps(coefficient));
    const __m512 gelu = _mm512_mul_ps(x, _mm512_fmadd_ps(inner, p, _mm512_set1_ps(0.5f)));
    _mm_mask_storeu_epi8(y + row * columns + column, lanes, to_bytes(_mm512_mul_ps(gelu, inverse_scale), zero_point));
  }
};

}  // namespace

// A weight [inputs, outputs] as panels [outputs / 32, inputs / 4, 32, 4], with zeros beyond the last column.
struct PackedWeight {
  size_t inputs, outputs;
  Aligned<int8_t> panels;
  std::vector<int32_t> sums;  // of each column
};

namespace {

void pack_panel(const int8_t* weight, size_t inputs, size_t outputs, size_t first, int8_t* panel) {
  const size_t width = std::min<size_t>(kColumns, outputs - first);
  if (width < kColumns) std::memset(panel, 0, kColumns * inputs);
  for (size_t row = 0; row < inputs; ++row)
    for (size_t column = 0; column < width; ++column)
      panel[(row / 4 * kColumns + column) * 4 + row % 4] = weight[row * outputs + first + column];
}

bool is_packed(const PackedWeight& packed, const int8_t* weight, size_t inputs, size_t outputs, int8_t* panel) {
  if (packed.inputs != inputs || packed.outputs != outputs) return false;
  for (size_t first = 0; first < outputs; first += kColumns) {
    pack_panel(weight, inputs, outputs, first, panel);
    if (std::memcmp(panel, packed.panels.get() + first * inputs, kColumns * inputs)) return false;
  }
  return true;
}

// The weight as it is in memory already, for another layer or session, or packed now.
std::shared_ptr<const PackedWeight> packed_weight(const int8_t* weight, size_t inputs, size_t outputs) {
  static std::mutex mutex;
  static auto& known = *new std::vector<std::weak_ptr<const PackedWeight>>;
  const std::lock_guard<std::mutex> lock(mutex);
  known.erase(std::remove_if(known.begin(), known.end(), [](const auto& each) { return each.expired(); }), known.end());
  const Aligned<int8_t> panel(static_cast<int8_t*>(allocate(kColumns * inputs)));
  for (const auto& each : known)
    if (auto found = each.lock(); found && is_packed(*found, weight, inputs, outputs, panel.get())) return found;
  auto made = std::make_shared<PackedWeight>();
  *made = {inputs, outputs, Aligned<int8_t>(static_cast<int8_t*>(allocate(round_up(outputs, kColumns) * inputs))),
           std::vector<int32_t>(outputs)};
  for (size_t first = 0; first < outputs; first += kColumns)
    pack_panel(weight, inputs, outputs, first, made->panels.get() + first * inputs);
  for (size_t row = 0; row < inputs; ++row)
    for (size_t column = 0; column < outputs; ++column) made->sums[column] += weight[row * outputs + column];
  known.push_back(made);
  return made;
}

}  // namespace

Linear::Linear(const int8_t* weight, const float* scales, const float* bias, Range input, size_t inputs, size_t outputs)
    : inputs_(inputs), outputs_(outputs), weight_(packed_weight(weight, inputs, outputs)) {
  const size_t columns = round_up(outputs, kColumns);
  scales_.reset(static_cast<float*>(allocate(columns * sizeof(float))));
  bias_.reset(static_cast<float*>(allocate(columns * sizeof(float))));
  std::fill_n(scales_.get(), columns, 0.0f);
  std::fill_n(bias_.get(), columns, 0.0f);
  for (size_t column = 0; column < outputs; ++column) {
    const float scale = input.scale * scales[column];
    scales_[column] = scale;
    // Σ (a - zero)·w = Σ a·w - zero·Σ w
    bias_[column] = bias[column] - scale * static_cast<float>(input.zero_point * weight_->sums[column]);
  }
}

template <class Finish>
void Linear::run(const uint8_t* x, size_t rows, const Finish& finish, const Threads& threads) const {
  const size_t panels = ceil_div(outputs_, kColumns), blocks = ceil_div(rows, kBlock);
  const size_t share = blocks >= 8 ? panels : blocks > 1 ? ceil_div(panels, 4) : kFewPanels;
  const size_t shares = ceil_div(panels, share);
  auto job = [&](size_t number) {
    const size_t block = number / shares, first_panel = number % shares * share;
    const size_t first_row = block * rows / blocks, end = (block + 1) * rows / blocks;
    const size_t strips = ceil_div(end - first_row, kRows);
    for (size_t panel = first_panel; panel < std::min(first_panel + share, panels); ++panel)
      for (size_t each = 0; each < strips; ++each) {
        const size_t row = first_row + each * (end - first_row) / strips;
        const size_t next = first_row + (each + 1) * (end - first_row) / strips;
        const size_t column = panel * kColumns;
        const auto* weights = reinterpret_cast<const uint8_t*>(weight_->panels.get()) + column * inputs_;
        const uint8_t* ahead = weights + kColumns * inputs_ + each % 2 * (kColumns / 2 * inputs_);
        strip_of<Finish>(next - row, strips == 1)(x + row * inputs_, inputs_, weights, inputs_ / 4, scales_.get() + column,
                                     bias_.get() + column,
                                     {row, column, static_cast<ptrdiff_t>(outputs_ - column), ahead}, finish);
      }
  };
  if (rows) threads.each(blocks * shares, job);
}

void Linear::run(const uint8_t* x, size_t rows, float* y, const Threads& threads) const {
  run(x, rows, StoreFloats{y, outputs_}, threads);
}

void Linear::run_gelu(const uint8_t* x, size_t rows, uint8_t* y, Range output, const Threads& threads) const {
  run(x, rows, StoreGelu{y, outputs_, _mm512_set1_ps(1 / output.scale), _mm512_set1_epi32(output.zero_point)}, threads);
}

}  // namespace bert
