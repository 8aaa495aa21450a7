// The instruction sets of csrc/cpu/isa that a processor runs, as it says itself. It includes
// nothing of the kernels: CMakeLists.txt compiles native.cpp with it before it knows which sets to
// compile.
#pragma once

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lpk {

#if defined(__x86_64__)

inline bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#if defined(LPK_SOFTWARE_AVX512)
inline bool runs_avx512() { return runs_avx2() && __builtin_cpu_supports("f16c"); }
inline bool runs_avx512vnni() { return runs_avx512(); }
inline bool runs_avx512fp16() { return runs_avx512(); }
#else
inline bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
inline bool runs_avx512vnni() { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }
// Stochastic sums there take AVX512-VNNI, which every such processor has so far. Clang 16 has no
// name for half precision: CPUID is asked (leaf 7, bit 23 of EDX).
inline bool runs_avx512fp16() {
  unsigned a, b, c, d;
  return runs_avx512vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1) != 0;
}
#endif

// The names of the sets, the best one last.
inline std::vector<const char*> sets_of_processor() {
  std::vector<const char*> names{"scalar"};
  if (runs_avx2()) names.push_back("avx2");
  if (runs_avx512()) names.push_back("avx512");
  if (runs_avx512fp16()) names.push_back("avx512fp16");
  return names;
}

#elif defined(__aarch64__)

// FEAT_FP16.
inline bool runs_half_precision() {
#if defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_FP16", &has, &size, nullptr, 0) == 0 && has != 0;
#elif defined(__linux__)
  constexpr unsigned long kBoth = HWCAP_FPHP | HWCAP_ASIMDHP;
  return (getauxval(AT_HWCAP) & kBoth) == kBoth;
#else
  return false;
#endif
}

// NEON is part of the architecture.
inline std::vector<const char*> sets_of_processor() {
  std::vector<const char*> names{"scalar", "neon"};
  if (runs_half_precision()) names.push_back("neonfp16");
  return names;
}

#else

inline std::vector<const char*> sets_of_processor() { return {"scalar"}; }

#endif

}  // namespace lpk
