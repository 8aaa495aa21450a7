// Banks of shared memory that the 32 threads of a warp meet, in host runs of the kernels of
// csrc/cuda.
//
// There are 32 banks of four bytes. An access of up to four bytes a thread is served at once if no
// two threads need different words of a bank. An access of 8 bytes is served in two halves of a
// warp, and one of 16 bytes in four quarters. A warp's n-th access between two barriers is one
// instruction, because no kernel branches inside a warp before one.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda_block.h"
#include "cuda_run.h"
#include "tests/check.h"
#include "tests/groups.h"

namespace lpk_test {
namespace {

using Accesses = std::vector<SharedAccess>;
constexpr int kWarp = 32;

// How many accesses of memory serve threads that need these words at once.
int rounds(const Accesses& together) {
  std::vector<uintptr_t> words;
  for (const SharedAccess& a : together) {
    for (uintptr_t word = a.at / 4; word <= (a.at + a.bytes - 1) / 4; ++word) words.push_back(word);
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::array<int, 32> met{};
  for (const uintptr_t word : words) ++met[word % 32];
  return *std::max_element(met.begin(), met.end());
}

// Checks one instruction of a warp, with the threads in order.
void check_instruction(const Accesses& lanes, const std::string& where) {
  const int bytes = lanes[0].bytes;
  const int at_once = bytes <= 4 ? kWarp : 128 / bytes;
  for (int first = 0; first < kWarp; first += at_once) {
    const int met = rounds({lanes.begin() + first, lanes.begin() + first + at_once});
    CHECK_SAME(met, 1, where + text(", %d bytes a thread, byte %d", bytes, int(lanes[0].at)));
  }
  const auto whole = [&](const SharedAccess& a) { return a.bytes == bytes && a.at % bytes == 0; };
  CHECK(std::all_of(lanes.begin(), lanes.end(), whole));
}

void check_banks(const Accesses& all, const std::string& where) {
  std::map<std::pair<int64_t, int>, std::vector<Accesses>> warps;  // by phase and warp
  for (const SharedAccess& a : all) {
    std::vector<Accesses>& threads = warps[{a.phase, a.thread / kWarp}];
    threads.resize(kWarp);
    threads[a.thread % kWarp].push_back(a);
  }
  CHECK(!warps.empty());
  for (const auto& [place, threads] : warps) {
    for (size_t n = 0; n < threads[0].size(); ++n) {
      Accesses lanes;
      for (const Accesses& mine : threads) {
        if (mine.size() == threads[0].size()) lanes.push_back(mine[n]);
      }
      CHECK(lanes.size() == kWarp);
      if (lanes.size() != kWarp) return;
      check_instruction(lanes, where);
    }
  }
}

std::vector<AccumulatorSpec> specs() {
  const FormatInts e6m9 = float_ints(6, 9);
  using A = AccumulatorSpec;
  std::vector<A> all = {
      A{"e5m10", float_ints(5, 10)},
      A{"bf16", float_ints(8, 7)},
      A{"fp32", float_ints(8, 23)},
      A{"e6m9", e6m9},
      A{"e5m9", float_ints(5, 9)},
      A{"e4m6", float_ints(4, 6, {Specials::kIeee, Overflow::kNan})},
      A{"e4m6 saturating", float_ints(4, 6, {Specials::kIeee, Overflow::kSaturate})},
      A{"e5m14 saturating", float_ints(5, 14, {Specials::kIeee, Overflow::kSaturate})},
      A{"e8m14", float_ints(8, 14)},
      A{"e5m17", float_ints(5, 17)},
      A{"e5m23", float_ints(5, 23)},
      A{"toward zero", e6m9, Rounding::kTowardZero},
      A{"stochastic", e6m9, Rounding::kStochastic},
      A{"to odd", e6m9, Rounding::kToOdd},
      A{"rounded products", e6m9}.with_product(float_ints(4, 2)),
      A{"e4m11", float_ints(4, 11)},
      A{"e4m11 saturating", float_ints(4, 11, {Specials::kIeee, Overflow::kSaturate})},
  };
  all[12] = all[12].drawing(8);
  const size_t plain = all.size();
  for (size_t n = 0; n < plain; ++n) {
    A chunked = all[n].chunked(8);
    if (chunked.rounding == Rounding::kStochastic)
      chunked = chunked.outer_rounded(Rounding::kNearestEven);
    all.push_back(chunked);
  }
  return all;
}

std::vector<std::pair<CudaSums::Values, CudaSums::Values>> operands() {
  return {{numbers(3, -2, 2), numbers(3, -2, 2)},    {numbers(2, -8, -4), numbers(3, -8, -4)},
          {numbers(3, 4, 9), numbers(3, 2, 8)},      {numbers(3, -4, 5), numbers(3, -9, 7)},
          {numbers(3, -30, -24), numbers(2, -3, 3)}, {numbers(1, -13, -11), numbers(2, -12, -11)},
          {numbers(8, -6, 1), numbers(8, -6, 1)},    {numbers(8, -20, 6), numbers(8, -20, 6)},
          {numbers(5, -25, 12), numbers(6, -6, 4)},  {numbers(23, -3, 1), numbers(23, -3, 1)},
          {numbers(2, -8, 2), numbers(1, -5, 1)},    {numbers(23, -9, 1), numbers(3, -9, 1)}};
}

// Runs every kernel of a product once, packed and with tables, in whole stages and broken ones.
void check_products() {
  Source source(12);
  std::set<Tier> tiers;
  std::set<std::tuple<std::string, Tier, bool>> done;
  for (const AccumulatorSpec& spec : specs()) {
    for (const auto& [left, right] : operands()) {
      for (const bool gathers : {false, true}) {
        CudaSums sums({1, 9, 7, 42, gathers, false}, spec, left, right, source);
        sums.job.fast_doubles = source.once_in(2);
        const bool certifies = lpk::cuda::may_certify(sums.job.acc);
        const Tier tier = certifies ? lpk::cuda::plan_for(sums.job).tier : Tier::kExact;
        // Kernels differ by their tier and by whether there are chunks; exact kernels differ by the
        // spec.
        const bool exact = tier == Tier::kExact || tier == Tier::kHardwareFloat;
        const std::string kind = exact ? spec.name : "";
        if (!done.insert({kind + (spec.chunk > 0 ? " in chunks" : ""), tier, gathers}).second)
          continue;
        tiers.insert(tier);
        check_banks(shared_accesses([&] { run_product(&sums.job); }),
                    text("%s, %s, tier %d", spec.name.c_str(), gathers ? "tables" : "packed",
                         static_cast<int>(tier)));
      }
    }
  }
  for (int tier = 0; tier <= static_cast<int>(Tier::kHardwareFloat); ++tier) {
    if (tiers.count(static_cast<Tier>(tier)) == 0) std::printf("tier %d was not met\n", tier);
    CHECK(tiers.count(static_cast<Tier>(tier)) == 1);
  }
}

// Squares go from lanes to steps, and back.
void check_packing() {
  for (const bool along_columns : {false, true}) {
    for (int i = 0; i < lpk::cuda::kPackSide; ++i) {
      Accesses lanes;
      for (int x = 0; x < kWarp; ++x) {
        const int word = lpk::cuda::square_place(x, i, along_columns).word();
        lanes.push_back({0, x, 4, static_cast<uintptr_t>(4 * word)});
      }
      check_instruction(lanes, "packing");
    }
  }
}

}  // namespace

void test_cuda_banks() {
  // The check itself is right: words 32 apart meet in a bank, one word does not.
  CHECK(rounds({{0, 0, 4, 0}, {0, 1, 4, 128}, {0, 2, 4, 256}}) == 3);
  CHECK(rounds({{0, 0, 4, 0}, {0, 1, 4, 0}, {0, 2, 2, 6}}) == 1);
  check_products();
  check_packing();
}

}  // namespace lpk_test
