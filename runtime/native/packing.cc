// Packs weights into GEMM panels, shares packed weights between sessions, and releases the pages they were read from.
#include "packing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>

#include "huge_pages.h"

namespace bert {

void FreeDeleter::operator()(void* memory) const { std::free(memory); }
void* allocate_aligned(size_t bytes) {
  void* memory = std::aligned_alloc(64, round_up(std::max<size_t>(bytes, 64), 64));
  if (!memory) throw std::bad_alloc();
  return memory;
}

namespace {

template <class Dot, class Weight>
void pack_panel(const Weight* weight, size_t in_features, size_t out_features, size_t first_column, Weight* panel) {
  const size_t columns = std::min<size_t>(kPanelColumns, out_features - first_column);
  if (const size_t size = panel_size<Weight>(in_features); columns * in_features < size)
    std::fill_n(panel, size, Weight{});
  for (size_t k = 0; k < in_features; ++k)
    for (size_t column = 0; column < columns; ++column)
      panel[PanelOrder<Dot>::index(k, column, in_features)] = weight[k * out_features + first_column + column];
}

template <class Weight>
void pack_panel(bool is_7_bit, const Weight* weight, size_t in_features, size_t out_features, size_t first_column,
                Weight* panel) {
  const auto pack = is_7_bit ? pack_panel<DotU8S7, Weight> : pack_panel<DotOf<Weight>, Weight>;
  pack(weight, in_features, out_features, first_column, panel);
}

template <class Weight>
bool has_7_bits([[maybe_unused]] const Weight* weight, [[maybe_unused]] size_t count) {
  if constexpr (!std::is_same_v<Weight, int8_t> || std::is_same_v<DotU8S7, DotU8S8>) {
    return false;
  } else {
    bool exceeds = false;
    for (size_t i = 0; i < count; ++i) exceeds |= weight[i] > 64 || weight[i] < -64;
    return !exceeds;
  }
}

// Whether `packed` is a copy of the weight. `panel` is working memory for one panel.
template <class Weight>
bool is_packed_copy(const PackedWeight<Weight>& packed, const Weight* weight, size_t in_features, size_t out_features,
                    Weight* panel) {
  if (packed.in_features != in_features || packed.out_features != out_features) return false;
  for (size_t column = 0; column < out_features; column += kPanelColumns) {
    pack_panel(packed.is_7_bit, weight, in_features, out_features, column, panel);
    const size_t size = panel_size<Weight>(in_features);
    if (std::memcmp(panel, packed.panels.get() + column / kPanelColumns * size, size * sizeof(Weight)) != 0)
      return false;
  }
  return true;
}

template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> pack(const Weight* weight, size_t in_features, size_t out_features) {
  auto packed = std::make_shared<PackedWeight<Weight>>();
  const size_t size = panel_size<Weight>(in_features);
  *packed = {in_features,
             out_features,
             has_7_bits(weight, in_features * out_features),
             std::static_pointer_cast<Weight[]>(
                 allocate_in_huge_pages(ceil_div(out_features, kPanelColumns) * size * sizeof(Weight))),
             {}};
  for (size_t column = 0; column < out_features; column += kPanelColumns)
    pack_panel(packed->is_7_bit, weight, in_features, out_features, column,
               packed->panels.get() + column / kPanelColumns * size);
  if constexpr (std::is_same_v<Weight, int8_t>) {
    packed->column_sums.resize(out_features);
    for (size_t k = 0; k < in_features; ++k)
      for (size_t column = 0; column < out_features; ++column)
        packed->column_sums[column] += weight[k * out_features + column];
  }
  return packed;
}

// Returns an equal packed weight that is in use somewhere in the process, or packs this one.
template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> find_or_pack(const Weight* weight, size_t in_features,
                                                         size_t out_features) {
  static std::mutex mutex;
  static auto& cache = *new std::vector<std::weak_ptr<const PackedWeight<Weight>>>;
  const std::scoped_lock lock(mutex);
  cache.erase(std::remove_if(cache.begin(), cache.end(), [](const auto& entry) { return entry.expired(); }),
              cache.end());
  const AlignedArray<Weight> panel = allocate_array<Weight>(panel_size<Weight>(in_features));
  for (const auto& entry : cache) {
    auto packed = entry.lock();
    if (packed && is_packed_copy(*packed, weight, in_features, out_features, panel.get())) return packed;
  }
  auto packed = pack(weight, in_features, out_features);
  cache.push_back(packed);
  return packed;
}

// Whether the pages from `first` to `end`, all of which have just been read, still hold what the mapped file holds.
// Pages that were written since, or that never had a file, are anonymous; Linux describes each page by 64 bits
// (Documentation/admin-guide/mm/pagemap.rst).
bool are_pages_clean(uintptr_t first, uintptr_t end, uintptr_t page_bytes) {
  constexpr uint64_t kPresent = uint64_t{1} << 63;
  constexpr uint64_t kSwapped = uint64_t{1} << 62;
  constexpr uint64_t kFileMapped = uint64_t{1} << 61;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  bool clean = true;
  for (uint64_t entries[512]; clean && first < end;) {
    const size_t count = std::min<size_t>((end - first) / page_bytes, std::size(entries));
    const size_t bytes = count * sizeof(uint64_t);
    const auto offset = static_cast<off_t>(first / page_bytes * sizeof(uint64_t));
    clean = pread(pagemap, entries, bytes, offset) == static_cast<ssize_t>(bytes);
    for (size_t i = 0; clean && i < count; ++i)
      clean = entries[i] & kFileMapped || !(entries[i] & (kPresent | kSwapped));
    first += count * page_bytes;
  }
  close(pagemap);
  return clean;
}

}  // namespace

void release_mapped_pages(const void* weight, size_t bytes) {
  constexpr size_t kMinBytes = 1 << 20;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(weight);
  const uintptr_t first = round_up(address, page_bytes), end = (address + bytes) / page_bytes * page_bytes;
  if (bytes >= kMinBytes && are_pages_clean(first, end, page_bytes))
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);  // NOLINT(performance-no-int-to-ptr)
}

template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> packed_weight(const Weight* weight, size_t in_features,
                                                          size_t out_features) {
  auto packed = find_or_pack(weight, in_features, out_features);
  release_mapped_pages(weight, in_features * out_features * sizeof(Weight));
  return packed;
}

template std::shared_ptr<const PackedWeight<int8_t>> packed_weight(const int8_t*, size_t, size_t);
template std::shared_ptr<const PackedWeight<float>> packed_weight(const float*, size_t, size_t);
#ifdef BERT_BF16
template std::shared_ptr<const PackedWeight<BFloat16>> packed_weight(const BFloat16*, size_t, size_t);
#endif

}  // namespace bert
