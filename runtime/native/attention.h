// What attention in integers and in floats share.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace bert {

// What a mask [tokens, tokens] leaves of the keys.
struct Kept {
  size_t count;  // up to the last that any query attends to
  bool all;      // whether every query attends to all of these
};

// Also which keys any query attends to.
inline Kept find_kept(const bool* mask, size_t tokens, bool* kept) {
  std::copy_n(mask, tokens, kept);
  for (size_t row = 1; row < tokens; ++row)
    for (size_t key = 0; key < tokens; ++key) kept[key] |= mask[row * tokens + key];
  Kept found = {tokens, true};
  while (found.count && !kept[found.count - 1]) --found.count;
  for (size_t row = 0; row < tokens && found.all; ++row)
    found.all = !std::memchr(mask + row * tokens, 0, found.count);
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
