// Tools of harness.cc: random numbers, tensors between pages that cannot be accessed, and thread pools.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace harness {

inline std::atomic<int> num_failures{0};

// Rounds to bfloat16: to nearest, ties to even.
inline bert::BFloat16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// The value of an element.
template <class T>
double value_of(T element) {
  return static_cast<double>(element);
}
inline double value_of(bert::BFloat16 element) {
  const uint32_t bits = static_cast<uint32_t>(element.bits) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// Counts a failure, and prints it.
__attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  ++num_failures;
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

// Random numbers of one case.
class Random {
 public:
  explicit Random(unsigned seed) : generator_(seed) {}
  size_t integer(size_t min, size_t max) { return min + generator_() % (max - min + 1); }
  bool one_in(size_t count) { return integer(1, count) == 1; }
  float normal() { return normal_(generator_); }
  // A size from 1 to max: small ones, multiples of 16 and their neighbours are as likely as all others.
  size_t size(size_t max) {
    const size_t multiple = 16 * integer(1, max / 16);
    const size_t choices[] = {integer(1, 9), integer(1, 40), multiple, multiple + integer(0, 2) - 1, integer(1, max)};
    return choices[integer(0, 4)];
  }

 private:
  std::mt19937 generator_;
  std::normal_distribution<float> normal_;
};

// An array that ends at a page that cannot be accessed, or starts `misalignment` bytes behind one. The bytes between
// the array and the pages have a pattern that only a write beyond the array changes.
template <class T>
class Guarded {
 public:
  Guarded(size_t count, bool ends_at_page, size_t misalignment = 0) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = count * sizeof(T);
    inner_bytes_ = (bytes + misalignment + page - 1) / page * page + page;
    total_bytes_ = inner_bytes_ + 2 * page;
    base_ =
        static_cast<uint8_t*>(mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    inner_ = base_ + page;
    std::memset(inner_, kPattern, inner_bytes_);
    mprotect(base_, page, PROT_NONE);
    mprotect(inner_ + inner_bytes_, page, PROT_NONE);
    first_ = ends_at_page ? inner_ + inner_bytes_ - bytes : inner_ + misalignment;
  }
  ~Guarded() { munmap(base_, total_bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return reinterpret_cast<T*>(first_); }
  size_t size() const { return count_; }
  // By memcpy, since the address may be one that T's alignment does not allow.
  T get(size_t index) const {
    T value;
    std::memcpy(&value, first_ + index * sizeof(T), sizeof(T));
    return value;
  }
  void set(size_t index, T value) { std::memcpy(first_ + index * sizeof(T), &value, sizeof(T)); }
  template <class F>
  void fill(const F& value) {
    for (size_t index = 0; index < count_; ++index) set(index, static_cast<T>(value(index)));
  }
  bool is_surrounded_by_pattern() const {
    const uint8_t *end = first_ + count_ * sizeof(T), *inner_end = inner_ + inner_bytes_;
    for (const uint8_t* byte = inner_; byte < inner_end; ++byte) {
      if (byte == first_ && first_ != end) byte = end;
      if (byte < inner_end && *byte != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t kPattern = 0xA5;
  size_t count_, inner_bytes_, total_bytes_;
  uint8_t *base_, *inner_, *first_;
};

// Runs all tasks in this thread.
inline bool run_serially(void*, bert::Task task, void* state, size_t count) {
  for (size_t index = 0; index < count; ++index) task(state, index);
  return true;
}

// Runs the tasks in three threads, of which two are new.
inline bool run_in_parallel(void*, bert::Task task, void* state, size_t count) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t index = next++; index < count; index = next++) task(state, index);
  };
  std::thread second(work), third(work);
  work();
  second.join();
  third.join();
  return true;
}

}  // namespace harness
