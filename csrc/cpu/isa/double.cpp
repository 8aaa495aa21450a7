#include "cpu/sums/exact/double_kernel.h"
#include "units.h"
#if defined(__AVX512F__)
#include "cpu/sums/exact/float_kernel.h"
#endif

namespace lpk::LPK_ISA {

void run_exact_tile(const Tile& t, const Accumulator& acc) {
#if defined(__AVX512F__)
  // Rules of float_lane_rules.h, faster than the rule of round.h.
  using L = RoundedLanes<double>;
  constexpr Rounding kNearest = Rounding::kNearestEven;
  const bool done = !acc.rounds_every_step() && for_mode(acc.rounding, [&](auto mode) {
    if constexpr (kCommon<mode>) {
      using Narrow = NarrowRule<L, kNearest>;
      using Fixed = FixedRule<L, kNearest>;
      if (try_rules<NarrowRule<L, mode>, Narrow>(t, acc) ||
          try_rules<NarrowRule<L, mode>, Fixed>(t, acc) ||
          try_rules<FixedRule<L, mode>, Narrow>(t, acc) ||
          try_rules<FixedRule<L, mode>, Fixed>(t, acc)) {
        return true;
      }
    }
    if constexpr (kMadeOdd<mode>) {
      if (try_rules<PowerRule<L, mode>>(t, acc)) return true;
    }
    return try_rules<NarrowRule<L, mode>>(t, acc) ||
           try_rules<NarrowRule<L, mode, false>>(t, acc) || try_rules<FixedRule<L, mode>>(t, acc);
  });
  if (done) return;
#endif
  run_double_tile<DoubleVector>(t, acc);
}

void close_in_double(const Tile& t, const Accumulator& acc, int64_t row, int64_t rows, int64_t lane,
                     uint64_t chunk) {
  close_panel<DoubleVector>(t, acc, row, rows, lane, chunk);
}

}  // namespace lpk::LPK_ISA
