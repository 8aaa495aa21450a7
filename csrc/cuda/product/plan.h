// The choice of a product's kernel. The device makes it by the certificate (common/certificate.h)
// of the facts that packing found.
#pragma once

#include "common/certificate.h"
#include "cuda/rules/outer_way.h"
#include "tiles.h"

namespace lpk::cuda {

LPK_HD int trailing_zeros(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}

LPK_HD OperandRange range_of(const Facts& f) {
  if (f.highest == 0 && f.lowest == 0) return range_of_zeros();
  const int width = f.mantissas == 0 ? 1 : 24 - trailing_zeros(f.mantissas);
  return {f.highest != 255 && f.lowest != 255, false, width, 362 - static_cast<int>(f.last_place),
          static_cast<int>(f.highest) - 126};
}

// No format with more bits behind the point is safe wherever sums lie, so none is ever clipped.
constexpr int kMostClipped = 11;

LPK_HD bool is_half(const Format& f) {
  return f.kind == Kind::kFloat && f.specials == Specials::kIeee && f.subnormals &&
         f.overflow == Overflow::kInfinity && f.exp_bits == 5 && f.emin == -14 && f.man_bits == 10;
}

// Whether sums of a saturating format may go wherever they like: they stop at max, and the sum of
// max and one product more is within reach of the rules, unscaled.
LPK_HD bool clips(const Accumulator& acc, const Certificate& c, const AddendRange& p,
                  const OperandRange& factor) {
  const Format& f = acc.fmt;
  if (acc.rounding != Rounding::kNearestEven || f.overflow != Overflow::kSaturate) return false;
  if (!c.everywhere || f.kind != Kind::kFloat || f.man_bits < 1 || f.man_bits > 21) return false;
  if (!f.subnormals && p.lowest < f.emin) return false;
  const int reach = most_of(log2_of(f.max) + 1, p.highest) + 1;
  const int least = least_of(least_of(p.lowest, factor.lowest), f.emin - f.man_bits);
  return p.plain && least >= -126 && reach + 25 - f.man_bits <= 127;
}

// Whether certified kernels can close chunks: to nearest in formats that have a mantissa, or in any
// format by the rounding of the sums themselves, if that is not to nearest.
LPK_HD bool closes_chunks(const Accumulator& acc) {
  if (acc.chunk == 0) return true;
  if (acc.outer_rounding != Rounding::kNearestEven) return acc.outer_rounding == acc.rounding;
  return acc.outer.kind == Kind::kFloat && acc.outer.man_bits > 0;
}

// Whether a random word holds four draws, of steps whose positions are their own indices.
LPK_HD bool draws_in_fours(const Accumulator& acc) {
  return acc.rng == Rng::kFast && acc.random_bits <= 8 && acc.chunk % 8 == 0;
}

// If sums are below 2^(bound - 1) after every fourth step, they are below 2^bound in between: a
// step adds less than 2^h, and at most one last place, which is 2^(bound - m - 1). The left operand
// is then scaled by 2^(2 - bound), which must be a normal float32.
LPK_HD bool watched_in_fours(const Accumulator& acc, const Sums& s, const Certificate& c,
                             const AddendRange& p) {
  return draws_in_fours(acc) && s.positions == nullptr && acc.fmt.man_bits >= 4 &&
         p.highest <= c.bound - 5 && 2 - c.bound <= 127;
}

// Whether float32 sums may be rounded to half precision wherever they lie. A sum that exceeds half
// precision becomes infinite by itself, and an infinity or NaN does what the contract says.
// Rounding twice is rounding once in three cases: where the products are narrow (B), also beside
// the floor; where the sum of a finite accumulator, which is below 2^16, and a product is always
// exact (A); or where the certificate's bound is never reached.
LPK_HD bool converts(const Accumulator& acc, const Certificate& c, const AddendRange& p) {
  if (!is_half(acc.fmt)) return false;
  if (p.width <= acc.fmt.man_bits + 1) return true;
  if (p.plain && most_of(p.highest, 16) + 1 <= p.lowest + 24) return true;
  return c.valid && !c.odd && !c.reached;
}

// Whether splitting takes two steps; csrc/cpu/sums/certified/certified_rules.h has the proof.
LPK_HD bool splits_shortly(const Format& f) { return f.man_bits <= 10; }

// The tiers of one certificate in float32.
struct FloatTiers {
  Tier proved, watched, clipped, odd;
};
LPK_HD FloatTiers float_tiers(const Format& f, bool floor) {
  if (floor) return {Tier::kFloor, Tier::kFloorWatched, Tier::kFloorClipped, Tier::kFloorOdd};
  if (splits_shortly(f))
    return {Tier::kTwoStep, Tier::kTwoStepWatched, Tier::kTwoStepClipped, Tier::kTwoStepOdd};
  return {Tier::kSplit, Tier::kSplitWatched, Tier::kSplitClipped, Tier::kSplitOdd};
}

// The plan of nearest_even under a certificate in float32, by the fastest rule that may be taken.
// fast_doubles: the processor adds doubles at half the rate of floats or faster. Sums in double
// then take no longer than sums made odd.
LPK_HD Plan plan_nearest(const Accumulator& acc, bool fast_doubles, const Certificate& c,
                         const AddendRange& p, const OperandRange& factor, int64_t steps) {
  const int32_t shift = 1 - c.bound;
  if (converts(acc, c, p)) return {Tier::kConverted, 0, false};
  const FloatTiers tiers = float_tiers(acc.fmt, c.floor);
  if (c.valid && !c.odd && !c.reached) return {tiers.proved, shift, false};
  if (clips(acc, c, p, factor)) return {tiers.clipped, 0, false};
  if (c.valid && !c.odd) return {tiers.watched, shift, false};
  // No kernel makes sums in double odd. So a bound need leave no room above the largest product:
  // the exact kernel makes the sums that pass it.
  const Certificate d = certify(double_precision(0), acc.fmt, Rounding::kNearestEven, 0, p,
                                range_of_zeros(), factor, steps);
  if (d.valid && !d.odd && (fast_doubles || !c.valid))
    return {d.floor ? Tier::kDoubleFloor : Tier::kDoubleSplit, 1 - d.bound, false};
  if (c.valid) return {tiers.odd, shift, false};
  return {Tier::kExact, 0, false};
}

// Whether any operands could take a kernel other than the exact one.
LPK_HD bool may_certify(const Accumulator& acc) {
  const Format& f = acc.fmt;
  if (acc.rounds_every_step() || !acc.has_running_sum() || !closes_chunks(acc) ||
      f.kind != Kind::kFloat || f.man_bits < 1)
    return false;
  const bool float32 = is_float32(f);
  switch (acc.rounding) {
    case Rounding::kNearestEven:
      return true;
    case Rounding::kTowardZero:
      return float32 || f.man_bits <= 21;
    case Rounding::kTowardPositive:
    case Rounding::kTowardNegative:
      return float32;
    case Rounding::kStochastic:
      return draws_in_fours(acc) && f.man_bits >= 4 && acc.random_bits <= 22 - f.man_bits;
    default:
      return false;
  }
}

// Whether sums to nearest have tiers in float32, beside those in double.
LPK_HD bool has_float_tiers(const Accumulator& acc) { return acc.fmt.man_bits <= 21; }

// How chunks close into outer sums of float32 or fewer bits. Where products are multiples of the
// last place 2^lx of the outer format's subnormals, what a chunk loses is below its last bits. So
// the sums of chunks are multiples of 2^lx too, no sum that is not zero becomes zero, and sums
// below min_normal are values already. Sums stay below k 2^h except for their roundings. These are
// a factor of at most (1 + 2^-m) for each chunk, and of less than 2 in all. One bit more is what a
// chunk's own roundings to nearest could add. Multiples of 2^l up to 2^(l + 24) add up exactly, and
// rounding leaves them multiples.
LPK_HD Closing closing_of(const Format& f, int64_t k, int64_t chunks, const AddendRange& p) {
  if (!p.plain || f.man_bits < 1 || f.man_bits > 21 || p.lowest < f.emin - f.man_bits)
    return Closing::kAny;
  const int top = p.highest + log2_above(k) + 2;
  if (chunks > int64_t{1} << (f.man_bits - 1) || top > least_of(log2_of(f.max), 102 + f.man_bits))
    return Closing::kFloorless;
  return top <= p.lowest + 24 ? Closing::kExact : Closing::kInside;
}

// Whether chunks of a tier may close as Closing::kInside or kExact. Chunks that a tier keeps below
// a bound, to nearest in their format, have no infinities.
LPK_HD bool closes_inside(Tier tier) {
  return tier >= Tier::kTwoStep && tier <= Tier::kDoubleFloor;
}

LPK_HD Closing closing_for(const Job& job, Tier tier, const AddendRange& p) {
  if (outer_way(job.acc) == OuterWay::kNone) return Closing::kInDouble;
  const Closing closing = closing_of(job.acc.outer, job.sums.k, job.chunks, p);
  return closing > Closing::kFloorless && !closes_inside(tier) ? Closing::kFloorless : closing;
}

// A plan with its tier and its shift alone.
LPK_HD Plan plan_tier(const Job& job, const OperandRange& factor, const OperandRange& other) {
  const Accumulator& acc = job.acc;
  const Sums& s = job.sums;
  constexpr Plan kNone{Tier::kExact, 0, false};
  const AddendRange p = product_range(factor, other);
  if (!may_certify(acc)) return kNone;
  if (acc.has_product && !products_stay(acc.product, p)) return kNone;
  const bool nearest = acc.rounding == Rounding::kNearestEven;
  const bool directed = acc.rounding != Rounding::kStochastic &&
                        acc.rounding != Rounding::kNearestAway && acc.rounding != Rounding::kToOdd;
  if (is_float32(acc.fmt)) return {directed ? Tier::kHardwareFloat : Tier::kExact, 0, false};
  const int64_t steps = acc.chunk > 0 && acc.chunk < s.k ? acc.chunk : s.k;
  Certificate c{};
  if (has_float_tiers(acc))
    c = certify(single_precision(), acc.fmt, acc.rounding, acc.random_bits, p, range_of_zeros(),
                factor, steps);
  if (nearest) return plan_nearest(acc, job.fast_doubles, c, p, factor, steps);
  if (!c.valid) return kNone;
  if (acc.rounding == Rounding::kTowardZero) return {Tier::kTruncated, 1 - c.bound, false};
  return watched_in_fours(acc, s, c, p) ? Plan{Tier::kStochastic, 2 - c.bound, false} : kNone;
}

LPK_HD Plan plan_for(const Job& job) {
  const Sums& s = job.sums;
  const Format& f = job.acc.fmt;
  const OperandRange factor = range_of(*s.left.facts);
  const OperandRange other = range_of(*s.right.facts);
  Plan plan = plan_tier(job, factor, other);
  const AddendRange p = product_range(factor, other);
  const bool unsigned_zeros =
      p.plain && p.lowest >= f.emin - f.man_bits && job.acc.rounding != Rounding::kTowardNegative;
  plan.signs = (s.left.absent || s.right.absent) && !unsigned_zeros;
  if (job.acc.chunk != 0) plan.closing = closing_for(job, plan.tier, p);
  return plan;
}

}  // namespace lpk::cuda
