// Working memory of kernels and operators.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace bert {

// A thread's working memory: it grows on demand and is freed when the thread ends.
class Scratch {
 public:
  // Returns at least `bytes` bytes, aligned to 64. Earlier contents are lost.
  uint8_t* reserve(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<uint8_t*>(allocate_aligned(bytes)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  AlignedArray<uint8_t> memory_;
  size_t size_ = 0;
};

}  // namespace bert
