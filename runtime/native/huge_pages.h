// Memory for packed weights, in huge pages where Linux gives them.
#pragma once
#include <cstddef>
#include <memory>

namespace bert {

// Returns `bytes` bytes that start at a multiple of 64, as part of a chunk that lives as long as any part of it.
// Throws std::bad_alloc where memory runs out.
std::shared_ptr<void> allocate_in_huge_pages(size_t bytes);

}  // namespace bert
