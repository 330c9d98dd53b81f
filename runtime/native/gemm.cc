// GEMM (matmul) of the linear layers: C [M, N] = epilogue(A [M, K] · B [K, N]).
//
// A: activations, uint8 or float32. B: weight, int8, float32 or bfloat16, packed once into panels (packing.h). int8
// matmuls accumulate in int32; scales, the zero point's correction and the bias are applied to each tile in float32.
// A's rows become bfloat16 in a job, or once where there is a single row block. With AMX they become tiles before; only
// bytes of many rows in a job, whose memory for them stays in L2.
//
//                               N
//               <------------------------------->
//             ^ +---+---+---+---+---+---+---+---+
//   B, packed | |p0 |p1 |p2 |p3 |p4 |p5 |p6 |p7 |   panel: NR = kPanelColumns columns, all of K
//           K | |   |   |   |   |   |   |   |   |   weight block: successive panels, about kWeightBlockBytes or less:
//             v +---+---+---+---+---+---+---+---+     it stays in L2 while all row blocks are multiplied by
//                block 0 block 1 block 2 block 3      it. About kMinWeightBlocks = 4 blocks or more; with many row
//                                                     blocks of tiles, fewer and larger ones.
//        K                    C
//     <----->   +-------+-------+-------+-------+
//   ^ +-----+   | job 0 | job 2 | job 4 | job 6 |   row block: up to kBlockRows rows of A
//   M |  A  |   +-------+-------+-------+-------+   job: row block × weight block; threads take jobs in this order
//   v +-----+   | job 1 | job 3 | job 5 | job 7 |
//               +-------+-------+-------+-------+
//
//   job:   the row block times the panels of the weight block, with the epilogue: gemm_block.h
//
// Row blocks and tiles divide their rows evenly: 49 rows are 24 + 25; with AMX, row blocks are whole tiles of 16. With
// a single row block (M ≤ kBlockRows), weight blocks are 64 columns wide, so that all threads have work.
#include <algorithm>
#include <type_traits>

#include "epilogue.h"
#include "packing.h"
#include "widened.h"

namespace bert {

namespace {

// Rows of A in one job: few enough for the TLB to hold the pages of their outputs while a weight block passes by.
// Tiles are so fast that reading the weight block counts, and take more.
template <class Dot>
constexpr size_t kBlockRows = kHasTiles<Dot> ? 128 : 48;
// Weight blocks to aim at, at least, where there are several row blocks.
constexpr size_t kMinWeightBlocks = 4;
// Row blocks from which on a job makes its tiles of bytes, and what is different then: a row block's tiles are made
// once for each weight block, so these are larger, and fewer. AMX comes with 2 MB of L2.
constexpr size_t kManyRowBlocks = 8, kMinLargeWeightBlocks = 2, kLargeWeightBlockBytes = 2 * kWeightBlockBytes;
// Panels of a weight block where there is one row block.
constexpr size_t kPanelsOfSmallBlock = 64 / kPanelColumns;

// Returns rows of A as the microkernel reads them, in the calling thread's memory.
template <class Dot, class Input>
const uint8_t* write_rows_in_parallel(const Input* x, size_t rows, size_t columns, const ThreadPool& threads) {
  constexpr size_t kJobRows = 64;
  static thread_local Scratch scratch;
  const size_t stride = a_row_bytes<Dot>(columns);
  uint8_t* const memory = scratch.reserve(round_up(rows, kRowUnit<Dot>) * stride);
  auto job = [&](size_t index) {
    const size_t first = index * kJobRows;
    write_microkernel_rows<Dot>(x + first * columns, std::min(kJobRows, rows - first), columns,
                                memory + first * stride);
  };
  threads.parallel_for(ceil_div(rows, kJobRows), job);
  return memory;
}

}  // namespace

template <class Input, class Weight>
Linear<Input, Weight>::Linear(const Weight* weight, const float* scales, const float* bias, size_t in_features,
                              size_t out_features)
    : in_features_(in_features),
      out_features_(out_features),
      weight_(packed_weight(weight, in_features, out_features)) {
  const size_t padded = round_up(out_features, kPanelColumns);
  for (AlignedArray<float>* vector : {&scales_, &bias_}) {
    *vector = allocate_array<float>(padded);
    std::fill_n(vector->get(), padded, 0.0F);
  }
  for (size_t column = 0; column < out_features; ++column) scales_[column] = scales ? scales[column] : 1;
  std::copy_n(bias, out_features, bias_.get());
}

template <class Input, class Weight>
Linear<Input, Weight>::Linear(const Weight* weight, const float* scales, const float* bias, size_t in_features,
                              size_t out_features, QuantParams input, float output_scale)
    : Linear(weight, scales, bias, in_features, out_features) {
  for (size_t column = 0; column < out_features; ++column) {
    const float scale = input.scale * scales_[column] / output_scale;
    scales_[column] = scale;
    // Σ (a - zero_point)·w = Σ (a - shift)·w - (zero_point - shift)·Σ w
    const int zero_point = input.zero_point - kInputShift<DotOf<Weight>>;
    bias_[column] =
        bias_[column] / output_scale - scale * static_cast<float>(zero_point * weight_->column_sums[column]);
  }
}

template <class Input, class Weight>
template <class Epilogue>
void Linear<Input, Weight>::gemm(const Input* x, size_t rows, const Epilogue& epilogue,
                                 const ThreadPool& threads) const {
  if constexpr (std::is_same_v<Weight, int8_t>)
    if (weight_->is_7_bit) return gemm<DotU8S7>(x, rows, epilogue, threads);
  gemm<DotOf<Weight>>(x, rows, epilogue, threads);
}

template <class Input, class Weight>
template <class Dot, class Epilogue>
void Linear<Input, Weight>::gemm(const Input* x, size_t rows, const Epilogue& epilogue,
                                 const ThreadPool& threads) const {
  const size_t a_stride = a_row_bytes<Dot>(in_features_), steps = a_stride / 4, panel_bytes = steps * Dot::kStepBytes;
  const size_t panels = ceil_div(out_features_, kPanelColumns), row_blocks = ceil_div(rows, kBlockRows<Dot>);
  const bool makes_tiles = kHasTiles<Dot> && sizeof(Input) == 1 && row_blocks >= kManyRowBlocks;  // in a job
  const size_t l2_blocks = makes_tiles
                               ? std::max(kMinLargeWeightBlocks, ceil_div(panels * panel_bytes, kLargeWeightBlockBytes))
                               : std::max(kMinWeightBlocks, ceil_div(panels * panel_bytes, kWeightBlockBytes));
  const size_t block_panels = row_blocks > 1 ? ceil_div(panels, l2_blocks) : kPanelsOfSmallBlock;
  const size_t weight_blocks = ceil_div(panels, block_panels);
  if (!rows) return;
  const uint8_t* all_rows = nullptr;
  if constexpr (kHasTiles<Dot>) {
    if (!makes_tiles) all_rows = write_rows_in_parallel<Dot>(x, rows, in_features_, threads);
  } else if (row_blocks == 1)
    all_rows = microkernel_rows<Dot>(x, rows, in_features_);
  const size_t units = ceil_div(rows, kRowUnit<Dot>);
  auto job = [&](size_t index) {
    const size_t row_block = index % row_blocks, first_panel = index / row_blocks * block_panels;
    const size_t first_row = row_block * units / row_blocks * kRowUnit<Dot>;
    const size_t end_row = std::min((row_block + 1) * units / row_blocks * kRowUnit<Dot>, rows);
    const uint8_t* a = all_rows
                           ? all_rows + first_row * a_stride
                           : microkernel_rows<Dot>(x + first_row * in_features_, end_row - first_row, in_features_);
    const GemmBlock block = {a,
                             a_stride,
                             first_row,
                             end_row - first_row,
                             reinterpret_cast<const uint8_t*>(weight_->panels.get()),
                             steps,
                             first_panel,
                             std::min(first_panel + block_panels, panels),
                             out_features_,
                             scales_.get(),
                             bias_.get()};
    multiply_block<Dot>(block, epilogue);
  };
  threads.parallel_for(row_blocks * weight_blocks, job);
}

template <class Input, class Weight>
void Linear<Input, Weight>::matmul(const Input* x, size_t rows, float* y, const ThreadPool& threads) const {
  gemm(x, rows, StoreF32<Identity>{y, out_features_, {}}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::matmul_gelu(const Input* x, size_t rows, float* y, const ThreadPool& threads) const {
  static const FloatGelu gelu;
  gemm(x, rows, StoreF32<const FloatGelu&>{y, out_features_, gelu}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::matmul_gelu(const Input* x, size_t rows, uint8_t* y, const QuantizedGelu& gelu,
                                        const ThreadPool& threads) const {
  gemm(x, rows, StoreQuantizedGelu{y, out_features_, gelu}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::matmul_gated(Gate gate, const Input* x, size_t rows, size_t columns, float* y,
                                         const ThreadPool& threads) const {
  static const FloatGelu gelu;
  if (gate == Gate::kSilu)
    gemm(x, rows, StoreGated<FloatSilu>{y, columns, {}}, threads);
  else
    gemm(x, rows, StoreGated<const FloatGelu&>{y, columns, gelu}, threads);
}

template <class Input, class Weight>
void Linear<Input, Weight>::matmul_gated(Gate gate, const Input* x, size_t rows, size_t columns, uint8_t* y,
                                         QuantParams output, const ThreadPool& threads) const {
  static const FloatGelu gelu;
  if (gate == Gate::kSilu)
    gemm(x, rows, StoreQuantizedGated<FloatSilu>{y, columns, {}, output}, threads);
  else
    gemm(x, rows, StoreQuantizedGated<const FloatGelu&>{y, columns, gelu, output}, threads);
}

size_t GatedColumns::count() const { return 2 * round_up(columns, kLanes); }

ptrdiff_t GatedColumns::source(size_t interleaved) const {
  const size_t column = interleaved / kPanelColumns * kLanes + interleaved % kLanes;
  if (column >= columns) return -1;
  return static_cast<ptrdiff_t>(column + (interleaved % kPanelColumns < kLanes ? 0 : columns));
}

template Linear<uint8_t, int8_t>::Linear(const int8_t*, const float*, const float*, size_t, size_t, QuantParams, float);
template void Linear<uint8_t, int8_t>::matmul(const uint8_t*, size_t, float*, const ThreadPool&) const;
template void Linear<uint8_t, int8_t>::matmul_gelu(const uint8_t*, size_t, uint8_t*, const QuantizedGelu&,
                                                   const ThreadPool&) const;
template void Linear<uint8_t, int8_t>::matmul_gated(Gate, const uint8_t*, size_t, size_t, uint8_t*, QuantParams,
                                                    const ThreadPool&) const;
template Linear<float, float>::Linear(const float*, const float*, const float*, size_t, size_t);
template void Linear<float, float>::matmul(const float*, size_t, float*, const ThreadPool&) const;
template void Linear<float, float>::matmul_gelu(const float*, size_t, float*, const ThreadPool&) const;
template void Linear<float, float>::matmul_gated(Gate, const float*, size_t, size_t, float*, const ThreadPool&) const;
#ifdef BERT_BF16
template Linear<float, BFloat16>::Linear(const BFloat16*, const float*, const float*, size_t, size_t);
template void Linear<float, BFloat16>::matmul(const float*, size_t, float*, const ThreadPool&) const;
template void Linear<float, BFloat16>::matmul_gelu(const float*, size_t, float*, const ThreadPool&) const;
template void Linear<float, BFloat16>::matmul_gated(Gate, const float*, size_t, size_t, float*,
                                                    const ThreadPool&) const;
#endif

}  // namespace bert
