// One emulated sum as a plain loop over the steps of common/accumulate.h, and the data to feed it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/drivers/element_types.h"
#include "tables.h"

namespace lpk_fuzz {

// The generator of the data. It gives the bytes that it was given while there are some, then
// those of xorshift64*, which has nothing to do with the kernels' draws.
class Source {
 public:
  explicit Source(uint64_t seed) : state_(seed * 2 + 1) {}
  Source(const uint8_t* bytes, size_t count) : Source(count) {
    bytes_ = bytes;
    left_ = count;
  }
  uint64_t next() {
    if (left_ >= sizeof(uint32_t)) {
      uint32_t word;
      std::memcpy(&word, bytes_, sizeof word);
      bytes_ += sizeof word;
      left_ -= sizeof word;
      state_ += word;
      return static_cast<uint64_t>(word) << 32;
    }
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  int between(int low, int high) {
    return low + static_cast<int>((next() >> 33) % static_cast<uint64_t>(high - low + 1));
  }
  bool once_in(int n) { return between(1, n) == 1; }
  // 24 random significant bits, exponents low .. high.
  float number(int low, int high) {
    const auto digits = static_cast<float>((next() >> 40) | 0x800000);
    const float a = std::ldexp(digits, between(low, high) - 23);
    return once_in(2) ? -a : a;
  }

 private:
  uint64_t state_;
  const uint8_t* bytes_ = nullptr;
  size_t left_ = 0;
};

// A product of a sum; an absent one adds nothing, but its position counts.
struct Tap {
  bool present;
  float a;
  float b;
};

class PlainSum {
 public:
  PlainSum(const AccumulatorSpec& spec, uint64_t seed)
      : acc_(lpk::accumulator_from(spec.ints().data())), seed_(seed) {}

  // The sum of tap(0) .. tap(length - 1), then the bias where there is one.
  template <class Taps>
  float run(int64_t length, uint64_t row, uint64_t col, const Taps& tap, const float* bias) const {
    const int64_t chunk = acc_.chunk > 0 ? acc_.chunk : std::max<int64_t>(length, 1);
    double sum = 0;
    for (int64_t from = 0; from < length; from += chunk) {
      const int64_t end = std::min(from + chunk, length);
      std::vector<Term> terms;
      terms.reserve(static_cast<size_t>(end - from));
      for (int64_t k = from; k < end; ++k) {
        const Tap t = tap(k);
        terms.push_back({t.present, t.present ? product(t, row, col, k) : 0, exponent_of(t)});
      }
      const double inner = inner_sum(terms, {row, col, from});
      sum =
          acc_.chunk > 0 ? add_outer(sum, inner, lpk::kSiteOuter, {row, col, from / chunk}) : inner;
    }
    if (bias != nullptr) sum = add_outer(sum, *bias, lpk::kSiteBias, {row, col, 0});
    return lpk::canonical_float(sum);
  }

 private:
  double threshold(Rounding rounding, uint32_t site, uint64_t row, uint64_t col, uint64_t k) const {
    if (rounding != Rounding::kStochastic) return 0;
    const uint32_t draw = lpk::random_draw(acc_.rng, seed_, site, row, col, k, acc_.random_bits);
    return lpk::stochastic_threshold<double>(draw, acc_.random_bits);
  }
  double product(const Tap& t, uint64_t row, uint64_t col, uint64_t k) const {
    const double exact = static_cast<double>(t.a) * static_cast<double>(t.b);
    if (!acc_.has_product) return exact;
    return lpk::round_to<double>(exact, acc_.product, acc_.product_rounding,
                                 threshold(acc_.product_rounding, lpk::kSiteProduct, row, col, k));
  }
  // Stands for a product without an exponent; so does the sum of two of these.
  static constexpr int kNone = -100000;
  // exponent: what a product is aligned by, for accumulators with operands.
  struct Term {
    bool present;
    double value;
    int exponent = kNone;
  };
  static int exponent_of(double x, double min_normal) {
    const bool counts = x != 0 && std::isfinite(x);
    return counts ? std::max(std::ilogb(x), std::ilogb(min_normal)) : kNone;
  }
  int exponent_of(const Tap& t) const {
    if (!t.present || !acc_.by_operands) return kNone;
    return std::max(
        kNone, exponent_of(t.a, acc_.left_min_normal) + exponent_of(t.b, acc_.right_min_normal));
  }
  // The keys of an output, and the position that its draws count from.
  struct Key {
    uint64_t row, col;
    int64_t k;
  };
  double threshold_at(Rounding rounding, uint32_t site, const Key& key, int64_t k) const {
    return threshold(rounding, site, key.row, key.col, static_cast<uint64_t>(key.k + k));
  }
  double add(double sum, double p, const Key& key, int64_t k) const {
    return lpk::add_rounded<double>(sum, p, acc_.fmt, acc_.rounding,
                                    threshold_at(acc_.rounding, lpk::kSiteSum, key, k));
  }
  double add_outer(double sum, double p, uint32_t site, const Key& key) const {
    const lpk::Format& f = acc_.chunk > 0 ? acc_.outer : acc_.fmt;
    return lpk::add_rounded<double>(sum, p, f, acc_.outer_rounding,
                                    threshold_at(acc_.outer_rounding, site, key, 0));
  }

  double inner_sum(const std::vector<Term>& terms, const Key& key) const {
    const int64_t count = static_cast<int64_t>(terms.size());
    if (acc_.order == lpk::Order::kPairwise) return tree(terms, 0, count, key).value;
    if (acc_.by_operands) return sum_by_operands(terms, key);
    double sum = 0, error = 0;
    for (int64_t k = 0; k < count; ++k) {
      if (acc_.block > 0) {
        if (k % acc_.block == 0)
          sum = aligned(sum, &terms[k], std::min<int64_t>(acc_.block, count - k), key, k);
      } else if (terms[k].present && acc_.order == lpk::Order::kCompensated) {
        const double y = add(-error, terms[k].value, key, k);
        const double total = add(sum, y, key, k);
        error = add(add(total, -sum, key, k), -y, key, k);
        sum = total;
      } else if (terms[k].present) {
        sum = add(sum, terms[k].value, key, k);
      }
    }
    return sum;
  }

  // The tree over positions from .. from + count. Its left half is the largest power of two below
  // count.
  Term tree(const std::vector<Term>& terms, int64_t from, int64_t count, const Key& key) const {
    if (count == 0) return {true, 0};
    if (count <= 2) {
      const Term none{false, 0};
      return pair(terms[from], count == 2 ? terms[from + 1] : none, key, from + 1);
    }
    int64_t half = 2;
    while (half * 2 < count) half *= 2;
    const Term a = tree(terms, from, half, key);
    const Term b = tree(terms, from + half, count - half, key);
    if (a.present && b.present) return {true, add(a.value, b.value, key, from + half)};
    return a.present ? a : b;
  }
  Term pair(const Term& a, const Term& b, const Key& key, int64_t k) const {
    if (!a.present && !b.present) return {false, 0};
    if (!a.present || !b.present) return {true, add(0, a.present ? a.value : b.value, key, k)};
    // Where the format wraps, two other products may stand for these: their sum has the same
    // result.
    double p = a.value, q = b.value;
    if (acc_.fmt.overflow == Overflow::kWrap) std::tie(p, q) = apart(p, q);
    double sum = lpk::odd_sum<double>(p, q);
    if (acc_.rounding == Rounding::kTowardNegative) sum = lpk::with_zero_sign<double>(sum, p, q);
    return {true, lpk::round_to<double>(sum, acc_.fmt, acc_.rounding,
                                        threshold_at(acc_.rounding, lpk::kSiteSum, key, k))};
  }
  // p and q, or two others whose exact sum rounds and wraps to the same value.
  std::pair<double, double> apart(double p, double q) const {
    const double whole = acc_.fmt.quantum * 0x1p50;
    const double range = acc_.fmt.modulus * acc_.fmt.quantum;
    if (!std::isfinite(p) || !std::isfinite(q)) return {p, q};
    if (std::fabs(p) < whole && std::fabs(q) < whole) return {p, q};
    if (std::fabs(p) >= whole && std::fabs(q) >= whole)
      return {std::fmod(p, range), std::fmod(q, range)};
    if (std::fabs(p) < whole) std::swap(p, q);
    // p moves away from zero until it outweighs the other.
    double reduced = std::fmod(p, range);
    const double away = std::copysign(range, p);
    reduced += away * (1 + std::floor(std::fabs(q) / range));
    return {reduced, q};
  }

  double aligned(double sum, const Term* terms, int64_t count, const Key& key, int64_t k) const {
    std::vector<double> addends = {sum};
    for (int64_t i = 0; i < count; ++i) {
      if (terms[i].present) addends.push_back(terms[i].value);
    }
    if (addends.size() == 1) return sum;
    int top = -1000;
    for (double x : addends) {
      if (x != 0 && std::isfinite(x)) top = std::max(top, std::ilogb(x));
    }
    double total = -0.0;
    bool negative = false;
    for (double x : addends) {
      total += std::isfinite(x) ? std::ldexp(std::trunc(std::ldexp(x, acc_.aligned_bits - top)),
                                             top - acc_.aligned_bits)
                                : x;
      negative |= std::signbit(x);
    }
    if (total == 0 && negative && acc_.rounding == Rounding::kTowardNegative) total = -0.0;
    return lpk::round_to<double>(total, acc_.fmt, acc_.rounding,
                                 threshold_at(acc_.rounding, lpk::kSiteSum, key, k));
  }

  // Blocks take turns in pairs of positions.
  double sum_by_operands(const std::vector<Term>& terms, const Key& key) const {
    const int64_t count = static_cast<int64_t>(terms.size()), turns = acc_.interleaved;
    double sum = 0;
    for (int64_t from = 0; from < count; from += turns * acc_.block) {
      for (int64_t turn = 0; turn < turns; ++turn) {
        std::vector<Term> mine;
        for (int64_t i = 0; i < turns * acc_.block && from + i < count; ++i) {
          if (i / 2 % turns == turn && terms[from + i].present) mine.push_back(terms[from + i]);
        }
        if (!mine.empty()) sum = aligned_by_operands(sum, mine, key, from + 2 * turn);
      }
    }
    return sum;
  }
  double aligned_by_operands(double sum, const std::vector<Term>& terms, const Key& key,
                             int64_t k) const {
    int top = exponent_of(sum, acc_.fmt.min_normal);
    for (const Term& t : terms) top = std::max(top, t.exponent);
    if (acc_.least_binade != 0) top = std::max(top, std::ilogb(acc_.least_binade));
    const int place = (top <= kNone / 2 ? 0 : top) - acc_.aligned_bits;
    double total = std::trunc(std::ldexp(sum, -place));
    for (const Term& t : terms) total += std::trunc(std::ldexp(t.value, -place));
    // Directed modes overflow as the format says too, and every zero is +0.
    const double r =
        lpk::round_to_float<double>(std::ldexp(total, place), acc_.fmt, acc_.rounding,
                                    threshold_at(acc_.rounding, lpk::kSiteSum, key, k), true);
    return r == 0 ? 0 : r;
  }

  lpk::Accumulator acc_;
  uint64_t seed_;
};

enum class Data {
  kPlain,     // 24 random bits around 1
  kShort,     // few bits, as operands of 8-bit formats: products and sums are often ties
  kWide,      // 2^80 apart
  kLarge,     // sums and products overflow every format
  kTiny,      // sums and products underflow every format
  kSpecials,  // one in eight is NaN, infinite, zero of either sign or float32's smallest
  kBits,      // any float32 at all
};
constexpr const char* kDataNames[] = {"plain", "short",    "wide", "large",
                                      "tiny",  "specials", "bits"};

inline float special(Source& source) {
  const float list[] = {0.0f, -0.0f,     0.0f,       -0.0f,      HUGE_VALF,
                        NAN,  0x1p-149f, -HUGE_VALF, -0x1p-149f, 0x1p-126f};
  // Infinities and NaN are rarer than the others, or every sum would end as NaN.
  const float x = list[source.between(0, 9)];
  return std::isfinite(x) || source.once_in(4) ? x : 0.0f;
}

inline float operand(Data data, Source& source) {
  switch (data) {
    case Data::kPlain:
      return source.number(-2, 1);
    case Data::kShort:
      return std::ldexp(static_cast<float>(source.between(-15, 15)), source.between(-6, 1));
    case Data::kWide:
      return source.number(-40, 40);
    case Data::kLarge:
      return source.number(0, source.once_in(3) ? 127 : 20);
    case Data::kTiny:
      return source.number(source.once_in(3) ? -149 : -30, -3);
    case Data::kSpecials:
      return source.once_in(8) ? special(source) : source.number(-3, 3);
    case Data::kBits:
      return lpk::float_of_bits(static_cast<uint32_t>(source.next() >> 32));
  }
  return 0;
}

// Operands of this kind times 2^exponent.
inline std::vector<float> operands(Data data, Source& source, int64_t count, int exponent = 0) {
  std::vector<float> result(static_cast<size_t>(count));
  for (float& x : result) x = std::ldexp(operand(data, source), exponent);
  return result;
}

// Products of operands of about 2 to this power are as large as the largest values of a format.
inline int fitting_exponent(const FormatInts& ints) {
  const lpk::Format f = lpk::number_format(ints.data());
  return std::ilogb(f.max - f.lowest) / 2;
}

}  // namespace lpk_fuzz
