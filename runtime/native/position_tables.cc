// Packs the positions of disentangled attention (PositionTables). Layout: see disentangled_attention.h.
#include "attention_packing.h"
#include "kernels.h"
#include "packing.h"

namespace bert {

template <>
PositionTables<float>::PositionTables(const float* keys, const float* queries, const int64_t* key_indices,
                                      const int64_t* query_indices, size_t num_heads, size_t positions,
                                      size_t head_size, size_t max_tokens)
    : num_heads(num_heads),
      head_size(head_size),
      max_tokens(max_tokens),
      panel_bytes(kPanelColumns * round_up(head_size, kLanes) * sizeof(float)),
      head_panels(ceil_div(2 * max_tokens, kPanelColumns) * panel_bytes / sizeof(float)) {
  auto pack = [&](const float* source, const int64_t* indices, Table& table) {
    table.panels = allocate_array<float>(num_heads * head_panels);
    for (size_t head = 0; head < num_heads; ++head) {
      const float* rows = source + head * positions * head_size;
      pack_rows([&](size_t column) { return rows + static_cast<size_t>(indices[column]) * head_size; }, 2 * max_tokens,
                round_up(2 * max_tokens, kPanelColumns), head_size, table.panels.get() + head * head_panels);
    }
  };
  pack(keys, key_indices, this->keys);
  pack(queries, query_indices, this->queries);
}

template <>
PositionTables<int16_t>::PositionTables(const float* keys, const float* queries, const int64_t* key_indices,
                                        const int64_t* query_indices, size_t num_heads, size_t positions,
                                        size_t head_size, size_t max_tokens)
    : num_heads(num_heads),
      head_size(head_size),
      max_tokens(max_tokens),
      panel_bytes(kPanelColumns * round_up(head_size, kPanelColumns) * sizeof(int16_t)),
      head_panels(ceil_div(2 * max_tokens, kPanelColumns) * panel_bytes / sizeof(int16_t)) {
  const float steps = max_query_steps(head_size);
  auto pack = [&](const float* source, const int64_t* indices, Table& table) {
    table.panels = allocate_array<int16_t>(num_heads * head_panels);
    table.scales = allocate_array<float>(num_heads);
    for (size_t head = 0; head < num_heads; ++head) {
      const float* rows = source + head * positions * head_size;
      const float max_abs = abs_max(rows, positions, head_size, head_size, nullptr);
      table.scales[head] = max_abs / steps;
      pack_rows([&](size_t column) { return rows + static_cast<size_t>(indices[column]) * head_size; }, 2 * max_tokens,
                round_up(2 * max_tokens, kPanelColumns), head_size, set1(steps / max_abs),
                table.panels.get() + head * head_panels);
    }
  };
  pack(keys, key_indices, this->keys);
  pack(queries, query_indices, this->queries);
}

}  // namespace bert
