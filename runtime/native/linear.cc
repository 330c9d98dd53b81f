// Products of bytes, or of floats, by a weight that was packed once.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "gelu.h"
#include "packing.h"

namespace bert {

namespace {

// Rows of one job: few enough for the pages of their outputs to be known to the processor while the weight passes by.
constexpr size_t kBlock = 48;
// Parts of a weight, at least, where there are several blocks of rows.
constexpr size_t kParts = 4;
// Panels of one job where there are few rows, so that all threads have a share.
constexpr size_t kFewPanels = 64 / kColumns;

struct Place {
  size_t row, column;
  ptrdiff_t columns;     // valid from there
  const uint8_t* ahead;  // of the next panel, the part that this strip asks the caches for
};

template <class Dot, int R, int Ahead, class Finish>
void strip(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps, const float* scales, const float* bias,
           const Place& place, const Finish& finish) {
  finish.template expect<R>(place);
  I32 acc[R][2];
  clear(acc);
  multiply<Dot, R, Ahead>(a, stride, panel, steps, acc, place.ahead);
  const F32 scale[2] = {load(scales), load(scales + kLanes)}, offset[2] = {load(bias), load(bias + kLanes)};
  finish.template tile<R>(place,
                          [&](int r, int half) { return fma(Dot::to_floats(acc[r][half]), scale[half], offset[half]); });
}

template <class Finish>
using Strip = void (*)(const uint8_t*, size_t, const uint8_t*, size_t, const float*, const float*, const Place&,
                       const Finish&);

template <class Dot, class Finish, int Ahead, int... Rows>
Strip<Finish> strip_of(size_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr Strip<Finish> strips[] = {strip<Dot, Rows + 1, Ahead, Finish>...};
  return strips[rows - 1];
}

// While it multiplies, a strip asks for the next panel: where several strips follow each other, each for a half of it.
template <class Dot, class Finish>
Strip<Finish> strip_of(size_t rows, bool alone) {
  constexpr std::make_integer_sequence<int, kRows> counts;
  return alone ? strip_of<Dot, Finish, Dot::kStep>(rows, counts) : strip_of<Dot, Finish, Dot::kStep / 2>(rows, counts);
}

struct AsItIs {
  F32 operator()(F32 x) const { return x; }
};

template <class Activation>
struct StoreFloats {
  float* y;
  size_t columns;
  Activation activation;
  template <int R>
  void expect(const Place& place) const {
    prefetch<R>(y + place.row * columns + place.column, columns * sizeof(float), kColumns * sizeof(float));
  }
  template <int R, class Values>
  void tile(const Place& place, const Values& values) const {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        store(y + (place.row + r) * columns + place.column + kLanes * half, activation(values(r, half)),
              place.columns - kLanes * half);
    }
  }
};

struct StoreGelu {
  uint8_t* y;
  size_t columns;
  const Gelu& gelu;
  template <int R>
  void expect(const Place& place) const {
    prefetch<R>(y + place.row * columns + place.column, columns, 1);
  }
  template <int R, class Values>
  void tile(const Place& place, const Values& values) const {
    auto part = [&](int r, int half) { return gelu_steps(values(r, half), gelu); };
    uint8_t* first = y + place.row * columns + place.column;
#pragma GCC unroll 6
    for (int r = 0; r < R; r += 2) {
      const int next = r + 1 < R ? r + 1 : r;
      const I32 bytes = to_bytes(part(r, 0), part(r, 1), part(next, 0), part(next, 1));
      store_bytes(first + r * columns, bytes, 0, place.columns);
      if (next > r) store_bytes(first + next * columns, bytes, 1, place.columns);
    }
  }
};

// Rows as the products take them: where those are of wider numbers, a copy in this thread's memory.
template <class Wide, class Input>
const uint8_t* widened(const Input* x, size_t count) {
  if constexpr (std::is_same_v<Wide, Input>) {
    return reinterpret_cast<const uint8_t*>(x);
  } else {
    static thread_local Scratch scratch;
    uint8_t* memory = scratch.take(count * sizeof(Wide));
    std::copy_n(x, count, reinterpret_cast<Wide*>(memory));
    return memory;
  }
}

}  // namespace

template <class Input, class Weight>
Linear<Input, Weight>::Linear(const Weight* weight, const float* scales, const float* bias, size_t inputs,
                              size_t outputs)
    : inputs_(inputs), outputs_(outputs), weight_(packed_weight(weight, inputs, outputs)) {
  for (Aligned<float>* each : {&scales_, &bias_}) {
    *each = allocate_numbers<float>(round_up(outputs, kColumns));
    std::fill_n(each->get(), round_up(outputs, kColumns), 0.0f);
  }
  for (size_t column = 0; column < outputs; ++column) scales_[column] = scales ? scales[column] : 1;
  std::copy_n(bias, outputs, bias_.get());
}

template <class Input, class Weight>
Linear<Input, Weight>::Linear(const Weight* weight, const float* scales, const float* bias, size_t inputs,
                              size_t outputs, Range input, float unit)
    : Linear(weight, scales, bias, inputs, outputs) {
  for (size_t column = 0; column < outputs; ++column) {
    const float scale = input.scale * scales_[column] / unit;
    scales_[column] = scale;
    // Σ (a - zero)·w = Σ a·w - zero·Σ w
    bias_[column] = bias_[column] / unit - scale * static_cast<float>(input.zero_point * weight_->sums[column]);
  }
}

template <class Input, class Weight>
template <class Finish>
void Linear<Input, Weight>::run(const Input* x, size_t rows, const Finish& finish, const Threads& threads) const {
  if constexpr (std::is_same_v<Weight, int8_t>)
    if (weight_->is_narrow) return run<NarrowBytes>(x, rows, finish, threads);
  run<DotOf<Weight>>(x, rows, finish, threads);
}

template <class Input, class Weight>
template <class Dot, class Finish>
void Linear<Input, Weight>::run(const Input* x, size_t rows, const Finish& finish, const Threads& threads) const {
  const size_t stride = inputs_ * sizeof(typename Dot::Input), steps = stride / 4;
  const size_t panel_bytes = kColumns * inputs_ * sizeof(Weight);
  const size_t panels = ceil_div(outputs_, kColumns), blocks = ceil_div(rows, kBlock);
  const size_t shares_of_cache = std::max(kParts, ceil_div(panels * panel_bytes, kPartBytes));
  const size_t share = blocks > 1 ? ceil_div(panels, shares_of_cache) : kFewPanels, shares = ceil_div(panels, share);
  auto job = [&](size_t number) {
    const size_t block = number % blocks, first_panel = number / blocks * share;
    const size_t first_row = block * rows / blocks, end = (block + 1) * rows / blocks;
    const size_t strips = ceil_div(end - first_row, kRows);
    const uint8_t* bytes = widened<typename Dot::Input>(x + first_row * inputs_, (end - first_row) * inputs_);
    for (size_t panel = first_panel; panel < std::min(first_panel + share, panels); ++panel) {
      const size_t column = panel * kColumns;
      const auto* weights = reinterpret_cast<const uint8_t*>(weight_->panels.get()) + panel * panel_bytes;
      for (size_t each = 0; each < strips; ++each) {
        const size_t row = each * (end - first_row) / strips, next = (each + 1) * (end - first_row) / strips;
        const uint8_t* ahead = weights + panel_bytes + each % 2 * (panel_bytes / 2);
        const Place place = {first_row + row, column, left(outputs_, column), ahead};
        strip_of<Dot, Finish>(next - row, strips == 1)(bytes + row * stride, stride, weights, steps,
                                                       scales_.get() + column, bias_.get() + column, place, finish);
      }
    }
  };
  if (rows) threads.each(blocks * shares, job);
}

template <class Input, class Weight>
void Linear<Input, Weight>::run(const Input* x, size_t rows, float* y, const Threads& threads) const {
  run(x, rows, StoreFloats<AsItIs>{y, outputs_, {}}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::run_gelu(const Input* x, size_t rows, float* y, const Threads& threads) const {
  static const FloatGelu gelu;
  run(x, rows, StoreFloats<const FloatGelu&>{y, outputs_, gelu}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::run_gelu(const Input* x, size_t rows, uint8_t* y, const Gelu& gelu,
                                     const Threads& threads) const {
  run(x, rows, StoreGelu{y, outputs_, gelu}, threads);
}

template Linear<uint8_t, int8_t>::Linear(const int8_t*, const float*, const float*, size_t, size_t, Range, float);
template void Linear<uint8_t, int8_t>::run(const uint8_t*, size_t, float*, const Threads&) const;
template void Linear<uint8_t, int8_t>::run_gelu(const uint8_t*, size_t, uint8_t*, const Gelu&, const Threads&) const;
template Linear<float, float>::Linear(const float*, const float*, const float*, size_t, size_t);
template void Linear<float, float>::run(const float*, size_t, float*, const Threads&) const;
template void Linear<float, float>::run_gelu(const float*, size_t, float*, const Threads&) const;

}  // namespace bert
