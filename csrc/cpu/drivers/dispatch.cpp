#if defined(LPK_AVX512FP16)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "cpu/sums/scaled/scaled.h"
#include "tile.h"

namespace lpk {
namespace {

bool runs_avx2() {
#if defined(LPK_X86)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool runs_avx512() {
#if defined(LPK_SOFTWARE_AVX512)
  return runs_avx2() && __builtin_cpu_supports("f16c");
#elif defined(LPK_X86)
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool runs_avx512vnni() {
#if defined(LPK_SOFTWARE_AVX512)
  return runs_avx512();
#elif defined(LPK_X86)
  return runs_avx512() && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool runs_avx512fp16() {
#if defined(LPK_SOFTWARE_AVX512) && defined(LPK_AVX512FP16)
  return runs_avx512();
#elif defined(LPK_AVX512FP16)
  // Stochastic sums there take AVX512-VNNI, which every such processor has so far.
  // Clang 16 has no name for half precision: CPUID is asked (leaf 7, bit 23 of EDX).
  unsigned a, b, c, d;
  return runs_avx512vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 23 & 1;
#else
  return false;
#endif
}

const Kernels& best_kernels() {
#if defined(LPK_AVX512FP16)
  if (runs_avx512fp16()) return kAvx512Fp16Kernels;
#endif
#if defined(LPK_X86)
  if (runs_avx512()) return kAvx512Kernels;
  if (runs_avx2()) return kAvx2Kernels;
#endif
  return kScalarKernels;
}

std::atomic<bool>& adding_apart() {
#if defined(LPK_X86)
  static std::atomic<bool> apart{__builtin_cpu_is("amd") != 0};
#else
  static std::atomic<bool> apart{false};
#endif
  return apart;
}

std::atomic<int64_t> tier_products[static_cast<int>(Tier::kCount)];

}  // namespace

void count_products(Tier tier, int64_t products) {
  tier_products[static_cast<int>(tier)].fetch_add(products, std::memory_order_relaxed);
}

void take_counts(int64_t* counts) {
  for (int i = 0; i < static_cast<int>(Tier::kCount); ++i) counts[i] = tier_products[i].exchange(0);
}

bool adds_apart() { return adding_apart().load(std::memory_order_relaxed); }

bool has_vnni() {
  static const bool vnni = runs_avx512vnni();
  return vnni;
}

void choose_adds_apart(bool apart) { adding_apart() = apart; }

const Kernels& kernels() {
  static const Kernels& best = best_kernels();
  const char* wanted = std::getenv("LPKERNELS_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  if (std::strcmp(wanted, "scalar") == 0) return kScalarKernels;
#if defined(LPK_X86)
  if (std::strcmp(wanted, "avx2") == 0 && runs_avx2()) return kAvx2Kernels;
  if (std::strcmp(wanted, "avx512") == 0 && runs_avx512()) return kAvx512Kernels;
#endif
#if defined(LPK_AVX512FP16)
  if (std::strcmp(wanted, "avx512fp16") == 0 && runs_avx512fp16()) return kAvx512Fp16Kernels;
#endif
  throw std::invalid_argument(
      std::string("LPKERNELS_ISA=") + wanted + ": this processor runs scalar" +
      (runs_avx2() ? ", avx2" : "") + (runs_avx512() ? ", avx512" : "") +
      (runs_avx512fp16() ? ", avx512fp16" : "") + "; unset it to take the best");
}

}  // namespace lpk
