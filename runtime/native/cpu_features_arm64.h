// CPU features of arm64, as Linux states them; every such processor has NEON.
#pragma once
#include <sys/auxv.h>

namespace bert {

constexpr unsigned long kDotProduct = 1UL << 20;         // ASIMDDP of AT_HWCAP
constexpr unsigned long kInt8MatrixProduct = 1UL << 13;  // I8MM of AT_HWCAP2
constexpr unsigned long kBf16 = 1UL << 14;               // BF16 of AT_HWCAP2

inline bool has_dot_product() { return getauxval(AT_HWCAP) & kDotProduct; }
inline bool has_int8_matrix_product() { return has_dot_product() && getauxval(AT_HWCAP2) & kInt8MatrixProduct; }
inline bool has_bf16() { return has_int8_matrix_product() && getauxval(AT_HWCAP2) & kBf16; }

}  // namespace bert
