#include "sets.h"

#if defined(LPK_AVX512FP16)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lpk {

#if defined(LPK_X86)
namespace {

bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#if defined(LPK_SOFTWARE_AVX512)
bool runs_avx512() { return runs_avx2() && __builtin_cpu_supports("f16c"); }
bool runs_avx512vnni() { return runs_avx512(); }
#if defined(LPK_AVX512FP16)
bool runs_avx512fp16() { return runs_avx512(); }
#endif
#else
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
bool runs_avx512vnni() { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }
#if defined(LPK_AVX512FP16)
// Stochastic sums there take AVX512-VNNI, which every such processor has so far. Clang 16 has no
// name for half precision: CPUID is asked (leaf 7, bit 23 of EDX).
bool runs_avx512fp16() {
  unsigned a, b, c, d;
  return runs_avx512vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1) != 0;
}
#endif
#endif

}  // namespace

std::vector<const Kernels*> kernels_of_processor() {
  std::vector<const Kernels*> sets{&kScalarKernels};
  if (runs_avx2()) sets.push_back(&kAvx2Kernels);
  if (runs_avx512()) sets.push_back(&kAvx512Kernels);
#if defined(LPK_AVX512FP16)
  if (runs_avx512fp16()) sets.push_back(&kAvx512Fp16Kernels);
#endif
  return sets;
}

bool has_vnni() {
  static const bool vnni = runs_avx512vnni();
  return vnni;
}

bool processor_adds_apart() { return __builtin_cpu_is("amd") != 0; }

#else

#if defined(LPK_AARCH64)
namespace {

// FEAT_FP16.
bool runs_half_precision() {
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

}  // namespace

// NEON is part of the architecture.
std::vector<const Kernels*> kernels_of_processor() {
  std::vector<const Kernels*> sets{&kScalarKernels, &kNeonKernels};
  if (runs_half_precision()) sets.push_back(&kNeonFp16Kernels);
  return sets;
}
#else
std::vector<const Kernels*> kernels_of_processor() { return {&kScalarKernels}; }
#endif

bool has_vnni() { return false; }

bool processor_adds_apart() { return false; }
#endif

}  // namespace lpk
