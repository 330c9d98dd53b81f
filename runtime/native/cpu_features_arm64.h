// CPU features of arm64, as the operating system states them; every such processor has NEON.
#pragma once
#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif
#include <cstddef>

namespace bert {

#if defined(__APPLE__)

inline bool has_feature(const char* name) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value;
}
inline bool has_dot_product() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_int8_matrix_product() { return has_dot_product() && has_feature("hw.optional.arm.FEAT_I8MM"); }
inline bool has_bf16() { return has_int8_matrix_product() && has_feature("hw.optional.arm.FEAT_BF16"); }

#else

constexpr unsigned long kDotProduct = 1UL << 20;         // ASIMDDP of AT_HWCAP
constexpr unsigned long kInt8MatrixProduct = 1UL << 13;  // I8MM of AT_HWCAP2
constexpr unsigned long kBf16 = 1UL << 14;               // BF16 of AT_HWCAP2

inline bool has_dot_product() { return getauxval(AT_HWCAP) & kDotProduct; }
inline bool has_int8_matrix_product() { return has_dot_product() && getauxval(AT_HWCAP2) & kInt8MatrixProduct; }
inline bool has_bf16() { return has_int8_matrix_product() && getauxval(AT_HWCAP2) & kBf16; }

#endif

}  // namespace bert
