// Which kernel a product takes. The device decides this from what packing found out.
//
// The certificates are those of csrc/cpu/sums/certified/certificate.h. Let a format have q =
// man_bits + 1 significant bits, and let 2^lx be the last place of its subnormals. Let products
// have at most r bits, be multiples of 2^l and lie below 2^h. A float32 sum rounded again to q bits
// is the exact sum rounded once if
//   (A) |s| <= 2^(l + 24), or (B) r <= q and 2 q <= 23, or q = 12 and r <= 11, or
//   (C) q + r <= 23 and |s| < 2^(lx + 24).
// Otherwise the float32 sum is made odd first, or the sum is made in double. In double the same
// holds with 53 bits for 24. As q is at most 24, (B) is then r <= q, and (C) is q + r <= 52 and |s|
// < 2^(lx + 53). If l >= lx, the subnormals' floor never acts, and no sum that is not zero becomes
// zero: sums start from +0, and none is ever -0, except in rounding toward_negative.
//
// How far can sums of at most n products go, to nearest or truncated? None goes beyond min(n, 2^q)
// 2^h, because adding 2^h to 2^q 2^h is a tie that stays there. So |s| < 2^(h + min(ceil(log2 n), q
// + 1)), and where this is within the bound no sum needs to be watched.
#pragma once

#include "cuda/rules/outer_way.h"
#include "tiles.h"

namespace lpk::cuda {

// What is known of an operand. Its elements have at most `width` significant bits, are multiples of
// 2^lowest and lie below 2^highest. plain: no element is NaN, infinite or subnormal.
struct Range {
  bool plain;
  int width, lowest, highest;
};

LPK_HD int least_of(int a, int b) { return a < b ? a : b; }
LPK_HD int most_of(int a, int b) { return a > b ? a : b; }

LPK_HD int trailing_zeros(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}

LPK_HD Range range_of(const Facts& f) {
  if (f.highest == 0 && f.lowest == 0) return {true, 1, 0, 0};
  const int width = f.mantissas == 0 ? 1 : 24 - trailing_zeros(f.mantissas);
  return {f.highest != 255 && f.lowest != 255, width, 362 - static_cast<int>(f.last_place),
          static_cast<int>(f.highest) - 126};
}

LPK_HD Range product_of(const Range& a, const Range& b) {
  return {a.plain && b.plain, a.width + b.width, a.lowest + b.lowest, a.highest + b.highest};
}

// ceil(log2 n), n >= 1, at most 62.
LPK_HD int log2_above(int64_t n) {
  int bits = 0;
  while (bits < 62 && (int64_t{1} << bits) < n) ++bits;
  return bits;
}

// Whether the product format leaves every product as it is.
LPK_HD bool products_stay(const Format& f, const Range& p) {
  if (!p.plain || f.kind != Kind::kFloat) return false;
  const int last = f.subnormals ? f.emin - f.man_bits : f.emin;
  return p.width <= f.man_bits + 1 && p.lowest >= last && p.highest <= log2_of(f.max);
}

LPK_HD bool rounds_twice_safely(int width, int q) {
  return width <= q && (2 * q <= 23 || (q == 12 && width <= 11));
}
// No format with more bits behind the point is ever safe, so none is ever clipped.
constexpr int kMostClipped = 11;

// Formats for which a processor has arithmetic of its own.
enum class Hardware : int32_t { kNone, kFloat, kHalf, kBfloat16 };

LPK_HD Hardware hardware_format(const Format& f) {
  if (f.kind != Kind::kFloat || f.specials != Specials::kIeee || !f.subnormals)
    return Hardware::kNone;
  if (f.overflow != Overflow::kInfinity) return Hardware::kNone;
  if (f.emin == -126 && f.exp_bits == 8 && f.man_bits == 23) return Hardware::kFloat;
  if (f.emin == -126 && f.exp_bits == 8 && f.man_bits == 7) return Hardware::kBfloat16;
  return f.emin == -14 && f.exp_bits == 5 && f.man_bits == 10 ? Hardware::kHalf : Hardware::kNone;
}

// Whether half precision or bfloat16 holds every element.
LPK_HD bool hardware_values(Hardware format, const Range& x) {
  if (!x.plain) return false;
  if (format == Hardware::kBfloat16) return x.width <= 8;
  return x.width <= 11 && x.highest <= 16 && x.lowest >= -24;
}

// Values below 2^max_bound do not overflow.
LPK_HD int max_bound(const Format& f) {
  const int top = log2_of(f.max);
  const bool full_binade = f.max == 2 * power_of_two(top) - power_of_two(top) * f.unit;
  return full_binade ? top + 1 : top;
}

// Sums beyond 2^40 need not be fast, and a low bound leaves room to scale.
constexpr int kEnoughBound = 40;

// Operands are scaled by 2^(1 - bound), or by 2^(2 - bound) for stochastic sums. This factor is a
// normal float32 for the bounds from kLeastBound to kMostBound alone. Sums beyond 2^127 are done
// again, as are those past any other bound.
constexpr int kLeastBound = -125;
constexpr int kMostBound = 127;

// What is certified of a sum: where float32 arithmetic may stand in for it, and up to what bound.
struct Certificate {
  bool valid, odd, floor;
  int bound;        // holds while every sum is below 2^bound
  bool everywhere;  // float32 sums may be rounded again wherever they lie
};

LPK_HD Certificate certify(const Accumulator& acc, const Range& p, const Range& factor) {
  const Format& f = acc.fmt;
  Certificate c{false, false, p.lowest < f.emin - f.man_bits, kEnoughBound, false};
  if (!p.plain || f.kind != Kind::kFloat || f.man_bits < 1 || f.man_bits > 21) return c;
  if (!f.subnormals && p.lowest < f.emin) return c;
  const int q = f.man_bits + 1;
  const int lx = f.emin - f.man_bits;
  if (acc.rounding == Rounding::kNearestEven) {
    c.everywhere = p.width <= 24 && rounds_twice_safely(p.width, q);
    if (p.width > 24) {
      c.odd = true;
    } else if (!c.everywhere) {
      int safe = p.lowest + 24;
      if (q + p.width <= 23) safe = most_of(safe, lx + 24);
      // Long sums need room above the largest product.
      c.odd = safe < least_of(p.highest + 12, kEnoughBound);
      if (!c.odd) c.bound = safe;
    }
  } else if (acc.rounding == Rounding::kTowardZero || acc.rounding == Rounding::kStochastic) {
    if (c.floor) return c;
    if (acc.rounding == Rounding::kStochastic && acc.random_bits > 22 - f.man_bits) return c;
  } else {
    return c;
  }
  // Sums are scaled so that 2^bound is 2. What the rules compute with must then stay normal: the
  // sums and, with the floor, the smallest binade. Of sums made odd, only two bits below the last
  // place matter.
  int least = p.lowest;
  if (c.floor) least = c.odd ? f.emin : least_of(least_of(p.lowest, lx), f.emin);
  least = least_of(least, factor.lowest);
  c.bound = least_of(least_of(c.bound, max_bound(f)), least_of(least + 127, kMostBound));
  c.valid = c.bound >= most_of(p.highest, kLeastBound) && factor.highest + 1 - c.bound <= 126;
  // Where a format's smallest binade lies far above the bound, what the floor adds must be finite.
  if (c.floor) c.valid = c.valid && f.emin + 1 - c.bound + 24 - f.man_bits <= 127;
  return c;
}

// Whether sums of a saturating format may go wherever they like: they stop at max, and the sum of
// max and one product more is within reach of the rules, unscaled.
LPK_HD bool clips(const Accumulator& acc, const Certificate& c, const Range& p,
                  const Range& factor) {
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
// step adds less than 2^h, and at most one last place, which is 2^(bound - m - 1).
LPK_HD bool watched_in_fours(const Accumulator& acc, const Sums& s, const Certificate& c,
                             const Range& p) {
  return draws_in_fours(acc) && s.positions == nullptr && acc.fmt.man_bits >= 4 &&
         p.highest <= c.bound - 5;
}

// The certificate of a sum in double, to nearest.
LPK_HD Certificate certify_double(const Accumulator& acc, const Range& p) {
  const Format& f = acc.fmt;
  const int q = f.man_bits + 1;
  const int lx = f.emin - f.man_bits;
  Certificate c{false, false, p.lowest < lx, p.lowest + 53, p.width <= q};
  if (!p.plain || f.kind != Kind::kFloat || f.man_bits < 1) return c;
  if (!f.subnormals && p.lowest < f.emin) return c;
  if (q + p.width <= 52) c.bound = most_of(c.bound, lx + 53);
  const int top = max_bound(f);
  c.bound = c.everywhere ? top : least_of(c.bound, top);
  c.valid = c.bound >= p.highest;
  return c;
}

// Whether float32 sums may be rounded to half precision wherever they lie. A sum that exceeds half
// precision becomes infinite by itself, and an infinity or NaN does what the contract says.
// Rounding twice is rounding once in three cases: where the products are narrow (B), also beside
// the floor; where the sum of a finite accumulator, which is below 2^16, and a product is always
// exact (A); or where the certificate's bound is never reached.
LPK_HD bool converts(const Accumulator& acc, const Certificate& c, int growth, const Range& p) {
  if (hardware_format(acc.fmt) != Hardware::kHalf) return false;
  if (p.width <= acc.fmt.man_bits + 1) return true;
  if (p.plain && most_of(p.highest, 16) + 1 <= p.lowest + 24) return true;
  return c.valid && !c.odd && growth <= c.bound;
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

// The plan of nearest_even under a certificate, by the fastest rule that may be taken.
// fast_doubles: the processor adds doubles at half the rate of floats or faster. Sums in double
// then take no longer than sums made odd.
LPK_HD Plan plan_nearest(const Accumulator& acc, bool fast_doubles, const Certificate& c,
                         int growth, const Range& p, const Range& factor) {
  const int32_t shift = 1 - c.bound;
  if (converts(acc, c, growth, p)) return {Tier::kConverted, 0, false};
  const FloatTiers tiers = float_tiers(acc.fmt, c.floor);
  if (c.valid && !c.odd && growth <= c.bound) return {tiers.proved, shift, false};
  if (clips(acc, c, p, factor)) return {tiers.clipped, 0, false};
  if (c.valid && !c.odd) return {tiers.watched, shift, false};
  const Certificate d = certify_double(acc, p);
  if (d.valid && (fast_doubles || !c.valid))
    return {d.floor ? Tier::kDoubleFloor : Tier::kDoubleSplit, 1 - d.bound, false};
  if (c.valid) return {tiers.odd, shift, false};
  return {Tier::kExact, 0, false};
}

// Whether any operands could take a kernel other than the exact one.
LPK_HD bool may_certify(const Accumulator& acc) {
  const Format& f = acc.fmt;
  if (!acc.has_running_sum() || !closes_chunks(acc) || f.kind != Kind::kFloat || f.man_bits < 1)
    return false;
  const bool float32 = hardware_format(f) == Hardware::kFloat;
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

// Whether tensor cores may make the chunks.
LPK_HD bool may_use_tensor_cores(const Accumulator& acc) {
  return acc.order == Order::kNative && acc.chunk > 0 && outer_way(acc) != OuterWay::kNone;
}

// How chunks close into outer sums of float32 or fewer bits. Where products are multiples of the
// last place 2^lx of the outer format's subnormals, what a chunk loses is below its last bits. So
// the sums of chunks are multiples of 2^lx too, no sum that is not zero becomes zero, and sums
// below min_normal are values already. Sums stay below k 2^h except for their roundings. These are
// a factor of at most (1 + 2^-m) for each chunk, and of less than 2 in all. One bit more is what a
// chunk's own roundings to nearest could add. Multiples of 2^l up to 2^(l + 24) add up exactly, and
// rounding leaves them multiples.
LPK_HD Closing closing_of(const Format& f, int64_t k, int64_t chunks, const Range& p) {
  if (!p.plain || f.man_bits < 1 || f.man_bits > 21 || p.lowest < f.emin - f.man_bits)
    return Closing::kAny;
  const int top = p.highest + log2_above(k) + 2;
  if (chunks > int64_t{1} << (f.man_bits - 1) || top > least_of(log2_of(f.max), 102 + f.man_bits))
    return Closing::kFloorless;
  return top <= p.lowest + 24 ? Closing::kExact : Closing::kInside;
}

// Whether chunks of a tier may close as Closing::kInside or kExact. Chunks that a tier keeps below
// a bound, to nearest in their format, have no infinities. Chunks of tensor cores are float32 sums
// of finite products.
LPK_HD bool closes_inside(Tier tier) {
  return (tier >= Tier::kTwoStep && tier <= Tier::kDoubleFloor) || tier == Tier::kTensorHalf ||
         tier == Tier::kTensorBfloat16;
}

LPK_HD Closing closing_for(const Job& job, Tier tier, const Range& p) {
  if (outer_way(job.acc) == OuterWay::kNone) return Closing::kInDouble;
  const Closing closing = closing_of(job.acc.outer, job.sums.k, job.chunks, p);
  return closing > Closing::kFloorless && !closes_inside(tier) ? Closing::kFloorless : closing;
}

// Whether a sum that ends as zero may have the wrong sign, or may be NaN because an absent tap,
// which is a zero here, met an infinity. The rules of float_rules.h, double_rules.h and
// convert_rule.h say so.
LPK_HD bool doubts_zeros(const Plan& plan) {
  switch (plan.tier) {
    case Tier::kFloor:
    case Tier::kFloorWatched:
    case Tier::kFloorClipped:
    case Tier::kFloorOdd:
    case Tier::kDoubleFloor:
      return true;
    case Tier::kConverted:
    case Tier::kHardwareHalf:
    case Tier::kHardwareBfloat16:
    case Tier::kHardwareFloat:
      return plan.signs;
    default:
      return false;
  }
}

// The tier and the shift.
LPK_HD Plan plan_tier(const Job& job, const Range& factor, const Range& other) {
  const Accumulator& acc = job.acc;
  const Sums& s = job.sums;
  constexpr Plan kNone{Tier::kExact, 0, false};
  const Range p = product_of(factor, other);
  if (!closes_chunks(acc)) return kNone;
  if (acc.has_product && !products_stay(acc.product, p)) return kNone;
  if (may_use_tensor_cores(acc)) {
    if (hardware_values(Hardware::kHalf, factor) && hardware_values(Hardware::kHalf, other))
      return {Tier::kTensorHalf, 0, false};
    if (hardware_values(Hardware::kBfloat16, factor) && hardware_values(Hardware::kBfloat16, other))
      return {Tier::kTensorBfloat16, 0, false};
  }
  const bool nearest = acc.rounding == Rounding::kNearestEven;
  const Hardware hardware = hardware_format(acc.fmt);
  const bool directed = acc.rounding != Rounding::kStochastic &&
                        acc.rounding != Rounding::kNearestAway && acc.rounding != Rounding::kToOdd;
  if (hardware == Hardware::kFloat)
    return {directed ? Tier::kHardwareFloat : Tier::kExact, 0, false};
  if (hardware != Hardware::kNone && nearest && hardware_values(hardware, factor) &&
      hardware_values(hardware, other)) {
    return {hardware == Hardware::kHalf ? Tier::kHardwareHalf : Tier::kHardwareBfloat16, 0, false};
  }
  const Certificate c = certify(acc, p, factor);
  const int64_t length = acc.chunk > 0 && acc.chunk < s.k ? acc.chunk : s.k;
  const int growth = p.highest + least_of(log2_above(length), acc.fmt.man_bits + 2);
  if (nearest) return plan_nearest(acc, job.fast_doubles, c, growth, p, factor);
  if (!c.valid) return kNone;
  if (acc.rounding == Rounding::kTowardZero) return {Tier::kTruncated, 1 - c.bound, false};
  return watched_in_fours(acc, s, c, p) ? Plan{Tier::kStochastic, 2 - c.bound, false} : kNone;
}

LPK_HD Plan plan_for(const Job& job) {
  const Sums& s = job.sums;
  const Format& f = job.acc.fmt;
  const Range factor = range_of(*s.left.facts);
  const Range other = range_of(*s.right.facts);
  Plan plan = plan_tier(job, factor, other);
  const Range p = product_of(factor, other);
  const bool unsigned_zeros =
      p.plain && p.lowest >= f.emin - f.man_bits && job.acc.rounding != Rounding::kTowardNegative;
  plan.signs = (s.left.absent || s.right.absent) && !unsigned_zeros;
  if (job.acc.chunk != 0) plan.closing = closing_for(job, plan.tier, p);
  return plan;
}

// Whether a tier follows the cut that is made for sums to nearest in float32, proved and watched,
// or for tensor cores. The accumulator says which shapes the tiles of the other tiers may have:
// job.h.
LPK_HD bool has_shapes(Tier tier) {
  return tier == Tier::kTwoStep || tier == Tier::kTwoStepWatched || tier == Tier::kSplit ||
         tier == Tier::kSplitWatched || tier == Tier::kFloor || tier == Tier::kFloorWatched ||
         tier == Tier::kTensorHalf || tier == Tier::kTensorBfloat16;
}

LPK_HD bool is_square(const Cut& cut) { return cut.rows == kTile && cut.cols == kTile; }

LPK_HD const Cut& planned_cut(const Job& job) {
  return has_shapes(job.plan->tier) ? job.shaped : job.others;
}

}  // namespace lpk::cuda
