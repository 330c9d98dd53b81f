// Attention whose matmuls are products of bfloat16 tiles (AMX).
#pragma once
#include "kernels.h"

namespace bert {

// Attention::compute_bf16 without tables.
void compute_in_tiles(const Attention& attention, float* y, const ThreadPool& threads);

}  // namespace bert
