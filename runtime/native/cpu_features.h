// CPU features by cpuid, each with the operating system's support for its registers. Not __builtin_cpu_supports: it
// reads a table of the compiler's runtime library, which zig's leaves empty (ziglang 0.17.1), so that no kernel would
// run.
#pragma once
#if defined(__aarch64__)
#include "cpu_features_arm64.h"
#else
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace bert {

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All 0 where the processor has no such leaf.
inline CpuidRegisters cpuid(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r;
  return __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) ? r : CpuidRegisters{};
}

inline bool has_all(unsigned found, unsigned needed) { return (found & needed) == needed; }

// Whether the operating system saves these parts of the vector registers, which are bits of XCR0.
inline bool saves_registers(unsigned parts) {
  if (!has_all(cpuid(1, 0).ecx, bit_OSXSAVE)) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has_all(low, parts);
}

constexpr unsigned kYmmParts = 0x06;  // XMM, upper halves of YMM
constexpr unsigned kZmmParts = 0xE6;  // those, mask registers, upper halves of ZMM, ZMM16 to 31

inline bool has_avx2_and_fma() {
  return has_all(cpuid(1, 0).ecx, bit_FMA) && has_all(cpuid(7, 0).ebx, bit_AVX2) && saves_registers(kYmmParts);
}

inline bool has_avx_vnni() { return has_avx2_and_fma() && has_all(cpuid(7, 1).eax, 1U << 4); }

// AVX512-VNNI, with the other parts of AVX-512 that the kernels use, and FMA.
inline bool has_avx512_vnni() {
  const CpuidRegisters leaf = cpuid(7, 0);
  return has_avx2_and_fma() && has_all(leaf.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
         has_all(leaf.ecx, bit_AVX512VNNI) && saves_registers(kZmmParts);
}

inline bool has_avx512_bf16() { return has_avx512_vnni() && has_all(cpuid(7, 1).eax, 1U << 5); }

// AMX's tiles with products of int8 and of bfloat16. Linux keeps their registers for a process that has asked for them
// (Documentation/arch/x86/xstate.rst): this asks once.
inline bool has_amx() {
  constexpr unsigned kTileParts = 0x60000;  // XTILECFG, XTILEDATA
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24, kInt8 = 1U << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool result = has_avx512_bf16() && has_all(cpuid(7, 0).edx, kBf16 | kTile | kInt8) &&
                             saves_registers(kTileParts) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return result;
}

}  // namespace bert

#endif
