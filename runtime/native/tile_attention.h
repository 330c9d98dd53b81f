// Attention whose matmuls are products of tiles (AMX).
#pragma once
#include "kernels.h"

namespace bert {

// Attention::compute_bf16 without tables.
void compute_in_tiles(const Attention& attention, float* y, const ThreadPool& threads);
// Attention::compute of uint8 without tables.
void compute_in_tiles(const Attention& attention, uint8_t* y, QuantParams output, const ThreadPool& threads);

}  // namespace bert
