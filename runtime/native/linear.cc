// Products of bytes by a weight that was packed once.
#include <algorithm>
#include <cstdlib>

#include "kernels.h"
#include "simd.h"

namespace bert {

void Free::operator()(void* memory) const { std::free(memory); }
void* allocate(size_t bytes) { return std::aligned_alloc(64, round_up(std::max<size_t>(bytes, 64), 64)); }

namespace {

// Rows of one job: few enough for their bytes to stay in the second-level cache while the weight passes by.
constexpr size_t kBlock = 8 * kRows;
// Panels of one job where there are few rows, so that all threads have a share.
constexpr size_t kFewPanels = 2;

struct Place {
  size_t row, column;
  ptrdiff_t columns;  // valid from there
};

template <int R, class Finish>
void strip(const uint8_t* a, size_t stride, const int8_t* panel, size_t steps, const float* scales, const float* bias,
           const Place& place, const Finish& finish) {
  finish.template expect<R>(place);
  __m512i acc[R][2];
  multiply<Bytes, R>(a, stride, reinterpret_cast<const uint8_t*>(panel), steps, acc);
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
using Strip = void (*)(const uint8_t*, size_t, const int8_t*, size_t, const float*, const float*, const Place&,
                       const Finish&);

template <class Finish>
Strip<Finish> strip_of(size_t rows) {
  static constexpr Strip<Finish> strips[kRows] = {
      strip<1, Finish>, strip<2, Finish>, strip<3, Finish>, strip<4, Finish>,  strip<5, Finish>,  strip<6, Finish>,
      strip<7, Finish>, strip<8, Finish>, strip<9, Finish>, strip<10, Finish>, strip<11, Finish>, strip<12, Finish>};
  return strips[rows - 1];
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
    // x·Φ(x), with Φ(x) - 1/2 as x times a polynomial of x² (Chebyshev fit on |x| <= 4.5, 1 beyond it but for 4e-6).
    const __m512 limit = _mm512_set1_ps(4.5f);
    const __m512 inner = _mm512_max_ps(_mm512_min_ps(x, limit), _mm512_set1_ps(-4.5f));
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

Linear::Linear(const int8_t* weight, const float* scales, const float* bias, Range input, size_t inputs, size_t outputs)
    : inputs_(inputs), outputs_(outputs) {
  const size_t panels = ceil_div(outputs, kColumns), steps = inputs / 4, columns = panels * kColumns;
  panels_.reset(static_cast<int8_t*>(allocate(columns * inputs)));
  scales_.reset(static_cast<float*>(allocate(columns * sizeof(float))));
  bias_.reset(static_cast<float*>(allocate(columns * sizeof(float))));
  std::memset(panels_.get(), 0, columns * inputs);
  std::fill_n(scales_.get(), columns, 0.0f);
  std::fill_n(bias_.get(), columns, 0.0f);
  for (size_t panel = 0; panel < panels; ++panel) {
    const size_t first = panel * kColumns, width = std::min<size_t>(kColumns, outputs - first);
    int8_t* packed = panels_.get() + panel * kColumns * inputs;
    int32_t sums[kColumns] = {};
    for (size_t step = 0; step < steps; ++step)
      for (size_t k = 0; k < 4; ++k) {
        const int8_t* source = weight + (4 * step + k) * outputs + first;
        for (size_t column = 0; column < width; ++column) {
          packed[(step * kColumns + column) * 4 + k] = source[column];
          sums[column] += source[column];
        }
      }
    for (size_t column = 0; column < width; ++column) {
      const float scale = input.scale * scales[first + column];
      scales_[first + column] = scale;
      // Σ (a - zero)·w = Σ a·w - zero·Σ w
      bias_[first + column] = bias[first + column] - scale * static_cast<float>(input.zero_point * sums[column]);
    }
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
        strip_of<Finish>(next - row)(x + row * inputs_, inputs_, panels_.get() + column * inputs_, inputs_ / 4,
                                     scales_.get() + column, bias_.get() + column,
                                     {row, column, static_cast<ptrdiff_t>(outputs_ - column)}, finish);
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
