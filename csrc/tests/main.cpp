// lpk_test [--share 1/N] [group ...]: runs the groups named, or all; LPKERNELS_ISA chooses the
// kernels. A share of the cases of long groups serves slow processors. Exit status 0: all passed;
// 1: some failed; 77: this processor cannot run the kernels asked for.
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "check.h"
#include "cpu/drivers/tile.h"
#include "groups.h"

namespace {

struct Group {
  const char* name;
  void (*run)();
};

constexpr Group kGroups[] = {
    {"round", lpk_test::test_round},
    {"add", lpk_test::test_add},
    {"rng", lpk_test::test_rng},
    {"dtypes", lpk_test::test_dtypes},
    {"pack", lpk_test::test_pack},
    {"quantize", lpk_test::test_quantize},
    {"count", lpk_test::test_count},
    {"matmul", lpk_test::test_matmul},
    {"tables", lpk_test::test_tables},
    {"scaled", lpk_test::test_scaled},
    {"fused", lpk_test::test_fused},
    {"conv", lpk_test::test_conv},
    {"events", lpk_test::test_events},
    {"update", lpk_test::test_update},
    {"cuda", lpk_test::test_cuda},
    {"cuda_banks", lpk_test::test_cuda_banks},
    {"cuda_certified", lpk_test::test_cuda_certified},
    {"cuda_rules", lpk_test::test_cuda_rules},
    {"cuda_ends", lpk_test::test_cuda_ends},
};

constexpr int kSkipped = 77;

void run(const Group& group) {
  const int64_t before = lpk_test::counts.passed;
  const auto start = std::chrono::steady_clock::now();
  group.run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%-8s %10lld checks passed in %.2f s\n", group.name,
              static_cast<long long>(lpk_test::counts.passed - before), seconds.count());
}

bool named(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return true;
  }
  return argc == 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--share") == 0) {
    const bool one_part = std::strncmp(argv[2], "1/", 2) == 0;
    lpk_test::share = one_part ? static_cast<uint32_t>(std::atoi(argv[2] + 2)) : 0;
    if (lpk_test::share == 0) {
      std::printf("--share takes 1/N, as 1/8, not %s\n", argv[2]);
      return 1;
    }
    argc -= 2, argv += 2;
  }
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const Group& group : kGroups) known |= std::strcmp(argv[i], group.name) == 0;
    if (!known) {
      std::printf("unknown group %s\n", argv[i]);
      return 1;
    }
  }
  try {
    std::printf("kernels: %s\n", lpk::kernels().isa);
  } catch (const std::invalid_argument& error) {
    std::printf("skipped: %s\n", error.what());
    return kSkipped;
  }
  for (const Group& group : kGroups) {
    if (named(group.name, argc, argv)) run(group);
  }
  const lpk_test::Counts& counts = lpk_test::counts;
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(counts.passed),
              static_cast<long long>(counts.failed));
  return counts.failed == 0 ? 0 : 1;
}
