// What attention in integers and in floats share.
#pragma once
#include <algorithm>

#include "kernels.h"
#include "simd.h"

namespace bert {

// Memory of a thread that grows and is given back when the thread ends.
class Scratch {
 public:
  uint8_t* take(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<uint8_t*>(allocate(bytes)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  Aligned<uint8_t> memory_;
  size_t size_ = 0;
};

// Lanes of 16 from `first` on that lie below `end`.
inline __mmask16 lanes_below(size_t end, size_t first) {
  return first_lanes(static_cast<ptrdiff_t>(end) - static_cast<ptrdiff_t>(first));
}

// Sixteen of `size` values from `first` on, and zeros behind them.
inline __m512 values_at(const float* row, size_t size, size_t first) {
  return _mm512_maskz_loadu_ps(lanes_below(size, first), row + first);
}

// What a mask [tokens, tokens] leaves of the keys.
struct Kept {
  size_t count;  // up to the last that any query attends to
  bool all;      // whether every query attends to all of these
};

// Also which keys any query attends to.
inline Kept find_kept(const bool* mask, size_t tokens, bool* kept) {
  Kept found = {0, true};
  for (size_t first = 0; first < tokens; first += 64) {
    const size_t left = tokens - first;
    const __mmask64 lanes = left >= 64 ? ~__mmask64(0) : (__mmask64(1) << left) - 1;
    __m512i any = _mm512_setzero_si512(), every = _mm512_set1_epi8(-1);
    for (size_t row = 0; row < tokens; ++row) {
      const __m512i keys = _mm512_maskz_loadu_epi8(lanes, mask + row * tokens + first);
      any = _mm512_or_si512(any, keys);
      every = _mm512_and_si512(every, keys);
    }
    _mm512_mask_storeu_epi8(kept + first, lanes, any);
    const __mmask64 some = _mm512_test_epi8_mask(any, any), all = _mm512_test_epi8_mask(every, every);
    if (!some) continue;
    const size_t last = 63 - static_cast<size_t>(__builtin_clzll(some));
    found.all = found.all && found.count == first && all == (~__mmask64(0) >> (63 - last));
    found.count = first + last + 1;
  }
  return found;
}

// What the mask of a batch [batch, 1, tokens, tokens] leaves of the keys of each sequence; null leaves all.
class Mask {
 public:
  Mask(const bool* mask, size_t batch, size_t tokens) : mask_(mask), tokens_(tokens) {
    if (!mask) return;
    any_.reset(static_cast<bool*>(allocate(batch * tokens)));
    kept_.reset(static_cast<Kept*>(allocate(batch * sizeof(Kept))));
    for (size_t each = 0; each < batch; ++each)
      kept_[each] = find_kept(mask + each * tokens * tokens, tokens, any_.get() + each * tokens);
  }
  // Keys up to the last that any query of the sequence attends to.
  size_t count(size_t sequence) const { return mask_ ? kept_[sequence].count : tokens_; }
  // Which of them any query attends to, or null for all.
  const bool* any(size_t sequence) const { return is_plain(sequence) ? nullptr : any_.get() + sequence * tokens_; }
  // Which of them queries attend to from that one on, `tokens` apart, or null where every query attends to all.
  const bool* from(size_t sequence, size_t query) const {
    return is_plain(sequence) ? nullptr : mask_ + (sequence * tokens_ + query) * tokens_;
  }

 private:
  bool is_plain(size_t sequence) const { return !mask_ || kept_[sequence].all; }
  const bool* mask_;
  size_t tokens_;
  Aligned<bool> any_;
  Aligned<Kept> kept_;
};

// Rows become columns, in groups of 4 bytes.
inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  for (int j = 0; j < 4; ++j) {  // quads[4·i + j] has column 4·lane + j of rows 4·i… in each lane of 128 bits
    const __m512i a = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    rows[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// f(first query, queries) for strips of at most kRows.
template <class F>
void each_strip(size_t tokens, const F& f) {
  const size_t strips = ceil_div(tokens, kRows);
  for (size_t each = 0; each < strips; ++each) {
    const size_t first = each * tokens / strips;
    f(first, (each + 1) * tokens / strips - first);
  }
}

}  // namespace bert
