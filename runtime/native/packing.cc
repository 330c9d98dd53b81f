// Packing of weights, and the memory they are in.
#include "packing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>

namespace bert {

void Free::operator()(void* memory) const { std::free(memory); }
void* allocate(size_t bytes) {
  void* memory = std::aligned_alloc(64, round_up(std::max<size_t>(bytes, 64), 64));
  if (!memory) std::abort();  // as the containers here do without exceptions
  return memory;
}

namespace {

template <class Dot, class Weight>
void pack_panel(const Weight* weight, size_t inputs, size_t outputs, size_t first, Weight* panel) {
  constexpr size_t group = Dot::kStep / kColumns / sizeof(Weight);
  const size_t width = std::min<size_t>(kColumns, outputs - first);
  if (width < kColumns) std::memset(panel, 0, kColumns * inputs * sizeof(Weight));
  for (size_t row = 0; row < inputs; ++row)
    for (size_t column = 0; column < width; ++column)
      panel[(row / group * kColumns + column) * group + row % group] = weight[row * outputs + first + column];
}

template <class Weight>
void pack_panel(bool is_narrow, const Weight* weight, size_t inputs, size_t outputs, size_t first, Weight* panel) {
  const auto pack = is_narrow ? pack_panel<NarrowBytes, Weight> : pack_panel<DotOf<Weight>, Weight>;
  pack(weight, inputs, outputs, first, panel);
}

template <class Weight>
bool is_narrow(const Weight* weight, size_t count) {
  if (!std::is_same_v<Weight, int8_t> || std::is_same_v<NarrowBytes, Bytes>) return false;
  bool is_beyond = false;
  for (size_t i = 0; i < count; ++i) is_beyond |= weight[i] > 64 || weight[i] < -64;
  return !is_beyond;
}

template <class Weight>
bool is_packed(const PackedWeight<Weight>& packed, const Weight* weight, size_t inputs, size_t outputs, Weight* panel) {
  if (packed.inputs != inputs || packed.outputs != outputs) return false;
  for (size_t first = 0; first < outputs; first += kColumns) {
    pack_panel(packed.is_narrow, weight, inputs, outputs, first, panel);
    if (std::memcmp(panel, packed.panels.get() + first * inputs, kColumns * inputs * sizeof(Weight))) return false;
  }
  return true;
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
  const Aligned<Weight> panel = allocate_numbers<Weight>(kColumns * inputs);
  for (const auto& each : known)
    if (auto found = each.lock(); found && is_packed(*found, weight, inputs, outputs, panel.get())) return found;
  auto made = std::make_shared<PackedWeight<Weight>>();
  *made = {inputs, outputs, is_narrow(weight, inputs * outputs),
           allocate_numbers<Weight>(round_up(outputs, kColumns) * inputs), {}};
  for (size_t first = 0; first < outputs; first += kColumns)
    pack_panel(made->is_narrow, weight, inputs, outputs, first, made->panels.get() + first * inputs);
  if constexpr (std::is_same_v<Weight, int8_t>) {
    made->sums.resize(outputs);
    for (size_t row = 0; row < inputs; ++row)
      for (size_t column = 0; column < outputs; ++column) made->sums[column] += weight[row * outputs + column];
  }
  known.push_back(made);
  return made;
}

}  // namespace

template <class Weight>
std::shared_ptr<const PackedWeight<Weight>> packed_weight(const Weight* weight, size_t inputs, size_t outputs) {
  auto packed = find_or_pack(weight, inputs, outputs);
  give_back(weight, inputs * outputs * sizeof(Weight));
  return packed;
}

template std::shared_ptr<const PackedWeight<int8_t>> packed_weight(const int8_t*, size_t, size_t);
template std::shared_ptr<const PackedWeight<float>> packed_weight(const float*, size_t, size_t);

}  // namespace bert
