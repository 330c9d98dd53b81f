// Products of bytes, or of floats, by a weight that was packed once.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <type_traits>
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

// Rows of one job: few enough for the pages of their outputs to be known to the processor while the weight passes by.
constexpr size_t kBlock = 4 * kRows;
// Bytes of a weight that all rows pass by before the next: they stay in the second-level cache.
constexpr size_t kPartBytes = 640 * 1024;
// Parts of a weight, at least, where there are several blocks of rows.
constexpr size_t kParts = 4;
// Panels of one job where there are few rows, so that all threads have a share.
constexpr size_t kFewPanels = 2;

struct Place {
  size_t row, column;
  ptrdiff_t columns;     // valid from there
  const uint8_t* ahead;  // of the next panel, the part that this strip asks the caches for
};

template <class Dot, int R, int Lines, class Finish>
void strip(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps, const float* scales, const float* bias,
           const Place& place, const Finish& finish) {
  finish.template expect<R>(place);
  __m512i acc[R][2];
  clear(acc);
  multiply<Dot, R, Lines>(a, stride, panel, steps, acc, place.ahead);
  const __m512 scale[2] = {_mm512_load_ps(scales), _mm512_load_ps(scales + 16)};
  const __m512 offset[2] = {_mm512_load_ps(bias), _mm512_load_ps(bias + 16)};
  finish.template tile<R>(place, [&](int r, int half) {
    return _mm512_fmadd_ps(Dot::floats(acc[r][half]), scale[half], offset[half]);
  });
}

template <class Finish>
using Strip = void (*)(const uint8_t*, size_t, const uint8_t*, size_t, const float*, const float*, const Place&,
                       const Finish&);

template <class Dot, class Finish, int Lines, int... Rows>
Strip<Finish> strip_of(size_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr Strip<Finish> strips[] = {strip<Dot, Rows + 1, Lines, Finish>...};
  return strips[rows - 1];
}

// With each group a strip asks for lines of the next panel: for both where it is alone, and for one of them where several
// strips follow each other.
template <class Dot, class Finish>
Strip<Finish> strip_of(size_t rows, bool alone) {
  constexpr std::make_integer_sequence<int, kRows> counts;
  return alone ? strip_of<Dot, Finish, 2>(rows, counts) : strip_of<Dot, Finish, 1>(rows, counts);
}

constexpr float kToInteger = 8388608;  // 2²³: added to a number, leaves the nearest integer in the lowest bits

double negative_part(double t) { return t * std::erfc(t / std::sqrt(2.0)) / 2; }  // t·Φ(-t)

struct AsItIs {
  __m512 operator()(__m512 x) const { return x; }
};

// max(x, 0) - t·Φ(-t) with t = |x|, of which the second is a cubic in each of 32 pieces, within 5e-7, and 0 beyond them.
struct FloatGelu {
  FloatGelu() {
    for (int piece = 0; piece < kPieces; ++piece) {
      // The cubic through four points of the piece, at the zeros of Chebyshev's polynomial, by divided differences.
      double x[4], f[4];
      for (int i = 0; i < 4; ++i) {
        x[i] = kWidth / 2 * std::cos((2 * i + 1) * kPi / 8);
        f[i] = -negative_part(piece * kWidth + x[i]);
      }
      for (int order = 1; order < 4; ++order)
        for (int i = 3; i >= order; --i) f[i] = (f[i] - f[i - 1]) / (x[i] - x[i - order]);
      double c[4] = {f[3]};
      for (int i = 2; i >= 0; --i)  // c·(r - x[i]) + f[i]
        for (int k = 3; k >= 0; --k) c[k] = (k ? c[k - 1] : f[i]) - c[k] * x[i];
      for (int k = 0; k < 4; ++k) tables[k][piece] = static_cast<float>(c[k]);
    }
  }
  __m512 operator()(__m512 x) const {
    const __m512 t = _mm512_range_ps(x, _mm512_set1_ps(kMost), 0b1010);  // the smaller magnitude, positive
    const __m512 number = _mm512_fmadd_ps(t, _mm512_set1_ps(1 / float(kWidth)), _mm512_set1_ps(kToInteger));
    const __m512i piece = _mm512_castps_si512(number);
    const __m512 middle = _mm512_sub_ps(number, _mm512_set1_ps(kToInteger));
    const __m512 r = _mm512_fnmadd_ps(middle, _mm512_set1_ps(float(kWidth)), t);
    auto coefficient = [&](int k) {
      return _mm512_permutex2var_ps(_mm512_load_ps(tables[k]), piece, _mm512_load_ps(tables[k] + 16));
    };
    __m512 rest = coefficient(3);
    for (int k = 2; k >= 0; --k) rest = _mm512_fmadd_ps(rest, r, coefficient(k));
    return _mm512_add_ps(_mm512_max_ps(_mm512_setzero_ps(), x), rest);  // the second where it is NaN
  }
  static constexpr int kPieces = 32;
  static constexpr double kPi = 3.14159265358979323846;
  static constexpr double kWidth = 0.1796875;  // exact in floats; piece i is around i · kWidth
  static constexpr float kMost = 5.6f;         // t·Φ(-t) is 6e-8 there
  alignas(64) float tables[4][kPieces];
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
      const __mmask16 lanes = first_lanes(place.columns - 16 * half);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        _mm512_mask_storeu_ps(y + (place.row + r) * columns + place.column + 16 * half, lanes,
                              activation(values(r, half)));
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
    const __mmask32 lanes = place.columns >= kColumns ? ~__mmask32(0) : (__mmask32(1) << place.columns) - 1;
    auto part = [&](int r, int half) { return integers(values(r, half)); };
    uint8_t* first = y + place.row * columns + place.column;
#pragma GCC unroll 6
    for (int r = 0; r < R; r += 2) {
      const int next = r + 1 < R ? r + 1 : r;
      const __m512i bytes = to_bytes(part(r, 0), part(r, 1), part(next, 0), part(next, 1));
      _mm256_mask_storeu_epi8(first + r * columns, lanes, _mm512_castsi512_si256(bytes));
      if (next > r) _mm256_mask_storeu_epi8(first + next * columns, lanes, _mm512_extracti64x4_epi64(bytes, 1));
    }
  }
  // GELU of x, all in steps of the output, plus its zero point.
  __m512i integers(__m512 x) const {
    x = _mm512_min_ps(x, _mm512_set1_ps(kMoreThanBytes));
    const __m512 t = _mm512_range_ps(x, _mm512_set1_ps(gelu.most), 0b1010);  // the smaller magnitude, positive
    const __m512 number = _mm512_fmadd_ps(t, _mm512_set1_ps(gelu.pieces_per_step), _mm512_set1_ps(kToInteger));
    const __m512i piece = _mm512_castps_si512(number);
    auto coefficient = [piece](const float* table) { return _mm512_permutexvar_ps(piece, _mm512_load_ps(table)); };
    __m512 rest = _mm512_fmadd_ps(coefficient(gelu.square), t, coefficient(gelu.linear));
    rest = _mm512_fmadd_ps(rest, t, coefficient(gelu.constant));
    return _mm512_cvtps_epi32(_mm512_add_ps(_mm512_max_ps(x, _mm512_setzero_ps()), rest));
  }
};

}  // namespace

// A weight [inputs, outputs] as panels [outputs / 32, inputs / G, 32, G], where G weights have 4 bytes, with zeros beyond
// the last column.
template <class Weight>
struct PackedWeight {
  size_t inputs, outputs;
  Aligned<Weight> panels;
  std::vector<int32_t> sums;  // of each column of bytes
};

namespace {

template <class Weight>
constexpr size_t kGroup = 4 / sizeof(Weight);

template <class Weight>
void pack_panel(const Weight* weight, size_t inputs, size_t outputs, size_t first, Weight* panel) {
  constexpr size_t group = kGroup<Weight>;
  const size_t width = std::min<size_t>(kColumns, outputs - first);
  if (width < kColumns) std::memset(panel, 0, kColumns * inputs * sizeof(Weight));
  for (size_t row = 0; row < inputs; ++row)
    for (size_t column = 0; column < width; ++column)
      panel[(row / group * kColumns + column) * group + row % group] = weight[row * outputs + first + column];
}

template <class Weight>
bool is_packed(const PackedWeight<Weight>& packed, const Weight* weight, size_t inputs, size_t outputs, Weight* panel) {
  if (packed.inputs != inputs || packed.outputs != outputs) return false;
  for (size_t first = 0; first < outputs; first += kColumns) {
    pack_panel(weight, inputs, outputs, first, panel);
    if (std::memcmp(panel, packed.panels.get() + first * inputs, kColumns * inputs * sizeof(Weight))) return false;
  }
  return true;
}

template <class Weight>
Aligned<Weight> allocate_weights(size_t count) {
  return Aligned<Weight>(static_cast<Weight*>(allocate(count * sizeof(Weight))));
}

// Whether a range of pages, all of which have just been read, is as a file has it: what is written since, or never had a
// file, is anonymous. Linux says so of each page in 64 bits (Documentation/admin-guide/mm/pagemap.rst).
bool is_as_in_file(uintptr_t first, uintptr_t end, uintptr_t page) {
  constexpr uint64_t kPresent = uint64_t(1) << 63, kSwapped = uint64_t(1) << 62, kOfFile = uint64_t(1) << 61;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  bool found = true;
  for (uint64_t entries[512]; found && first < end;) {
    const size_t count = std::min<size_t>((end - first) / page, std::size(entries));
    const auto offset = static_cast<off_t>(first / page * sizeof(uint64_t));
    found = pread(pagemap, entries, count * sizeof(uint64_t), offset) == static_cast<ssize_t>(count * sizeof(uint64_t));
    for (size_t i = 0; found && i < count; ++i) found = entries[i] & kOfFile || !(entries[i] & (kPresent | kSwapped));
    first += count * page;
  }
  close(pagemap);
  return found;
}

// Gives back the memory of a large weight that is mapped from a file: it is packed, and would be read from there again.
void give_back(const void* weight, size_t bytes) {
  constexpr size_t kLarge = 1 << 20;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(weight);
  const uintptr_t first = round_up(address, page), end = (address + bytes) / page * page;
  if (bytes >= kLarge && is_as_in_file(first, end, page))
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

// The weight as it is in memory already, for another layer or session, or packed now.
template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> find_or_pack(const Weight* weight, size_t inputs, size_t outputs) noexcept {
  static std::mutex mutex;
  static auto& known = *new std::vector<std::weak_ptr<const PackedWeight<Weight>>>;
  const std::lock_guard<std::mutex> lock(mutex);
  known.erase(std::remove_if(known.begin(), known.end(), [](const auto& each) { return each.expired(); }), known.end());
  const Aligned<Weight> panel = allocate_weights<Weight>(kColumns * inputs);
  for (const auto& each : known)
    if (auto found = each.lock(); found && is_packed(*found, weight, inputs, outputs, panel.get())) return found;
  auto made = std::make_shared<PackedWeight<Weight>>();
  *made = {inputs, outputs, allocate_weights<Weight>(round_up(outputs, kColumns) * inputs), {}};
  for (size_t first = 0; first < outputs; first += kColumns)
    pack_panel(weight, inputs, outputs, first, made->panels.get() + first * inputs);
  if constexpr (std::is_same_v<Weight, int8_t>) {
    made->sums.resize(outputs);
    for (size_t row = 0; row < inputs; ++row)
      for (size_t column = 0; column < outputs; ++column) made->sums[column] += weight[row * outputs + column];
  }
  known.push_back(made);
  return made;
}

template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> packed_weight(const Weight* weight, size_t inputs, size_t outputs) {
  auto packed = find_or_pack(weight, inputs, outputs);
  give_back(weight, inputs * outputs * sizeof(Weight));
  return packed;
}

template <class Input>
using DotOf = std::conditional_t<std::is_same_v<Input, float>, Floats, Bytes>;

}  // namespace

template <class Input, class Weight>
Linear<Input, Weight>::Linear(const Weight* weight, const float* scales, const float* bias, size_t inputs,
                              size_t outputs)
    : inputs_(inputs), outputs_(outputs), weight_(packed_weight(weight, inputs, outputs)) {
  for (Aligned<float>* each : {&scales_, &bias_}) {
    *each = allocate_weights<float>(round_up(outputs, kColumns));
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
  const size_t stride = inputs_ * sizeof(Input), steps = stride / 4, panel_bytes = kColumns * inputs_ * sizeof(Weight);
  const size_t panels = ceil_div(outputs_, kColumns), blocks = ceil_div(rows, kBlock);
  const size_t shares_of_cache = std::max(kParts, ceil_div(panels * panel_bytes, kPartBytes));
  const size_t share = blocks > 1 ? ceil_div(panels, shares_of_cache) : kFewPanels, shares = ceil_div(panels, share);
  const auto* bytes = reinterpret_cast<const uint8_t*>(x);
  auto job = [&](size_t number) {
    const size_t block = number % blocks, first_panel = number / blocks * share;
    const size_t first_row = block * rows / blocks, end = (block + 1) * rows / blocks;
    const size_t strips = ceil_div(end - first_row, kRows);
    for (size_t panel = first_panel; panel < std::min(first_panel + share, panels); ++panel) {
      const size_t column = panel * kColumns;
      const auto* weights = reinterpret_cast<const uint8_t*>(weight_->panels.get()) + panel * panel_bytes;
      for (size_t each = 0; each < strips; ++each) {
        const size_t row = first_row + each * (end - first_row) / strips;
        const size_t next = first_row + (each + 1) * (end - first_row) / strips;
        const uint8_t* ahead = weights + panel_bytes + each % 2 * (panel_bytes / 2);
        const Place place = {row, column, static_cast<ptrdiff_t>(outputs_ - column), ahead};
        strip_of<DotOf<Input>, Finish>(next - row, strips == 1)(bytes + row * stride, stride, weights, steps,
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

Gelu::Gelu(Range output) {
  constexpr double kMost = 4.5;  // where t·Φ(-t) is 1.5e-5
  constexpr double kWidth = kMost / (kPieces - 0.5);  // piece i is around i · kWidth
  const double step = output.scale;
  most = static_cast<float>(kMost / step * (1 - 1e-6));
  pieces_per_step = static_cast<float>(step / kWidth);
  for (int piece = 0; piece < kPieces; ++piece) {
    // The parabola through three points of the piece, at the zeros of Chebyshev's polynomial.
    const double middle = piece * kWidth, half = kWidth / 2 * std::sqrt(0.75);
    const double low = negative_part(middle - half), at = negative_part(middle), high = negative_part(middle + half);
    const double curve = (high - 2 * at + low) / (2 * half * half), slope = (high - low) / (2 * half);
    square[piece] = static_cast<float>(-curve * step);
    linear[piece] = static_cast<float>(-(slope - 2 * curve * middle));
    constant[piece] = static_cast<float>(output.zero_point - (at - slope * middle + curve * middle * middle) / step);
  }
}

}  // namespace bert
