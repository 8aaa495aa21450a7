#include "common/table.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/check.h"
#include "common/codes.h"
#include "cpu/lanes/control_word.h"

namespace lpk {
namespace {

// The thresholds of one mode, for x in float32 or double, with an index. The upper word of x is
// its sign and exponent, which choose a row, and the first bits of its significand. A row has cells
// of equal width. A cell knows how many thresholds are at most its least number; the few
// thresholds inside it are searched.
template <class T>
class Ladder {
 public:
  static constexpr bool kIsFloat = sizeof(T) == sizeof(float);
  static constexpr int kIndexBits = kIsFloat ? 23 : 20;

  // Before the first search, by whichever thread comes first. values: as words of float32.
  void make(const double* thresholds, size_t count, const std::vector<uint32_t>& values) {
    if (ready_.load(std::memory_order_acquire)) return;
    std::call_once(once_, [&] {
      const FloatEnvironment environment;
      for (size_t i = 0; i < count; ++i) at_.push_back(not_below(thresholds[i]));
      uint32_t most = 1;
      for (uint32_t row = 0; row < 2 * kExponents; ++row) most = std::max(most, add_row(row));
      while ((1u << steps_) <= most) ++steps_;
      for (even_.shift = 23; kIsFloat && even_.shift > 12; --even_.shift)
        if (add_even_cells(values)) break;
      // No number is at least a NaN.
      at_.resize(count + (size_t{1} << steps_), std::numeric_limits<T>::quiet_NaN());
      words_.resize(kIsFloat ? at_.size() : 0);
      if (kIsFloat) std::memcpy(words_.data(), at_.data(), words_.size() * sizeof(uint32_t));
      ready_.store(true, std::memory_order_release);
    });
  }

  int steps() const { return steps_; }
  const uint32_t* rows() const { return rows_.data(); }
  const uint32_t* cells() const { return cells_.data(); }
  const uint32_t* words() const { return words_.data(); }
  TableCells even_cells() const {
    TableCells cells = even_;
    cells.thresholds = even_thresholds_.data();
    cells.values = even_values_.data();
    return cells;
  }

  // How many thresholds are at most x; any number for a NaN. kSteps: of the search in a cell, or 0:
  // as many as there are.
  template <int kSteps>
  LPK_HD uint32_t rank(T x) const {
    const uint32_t word = upper(x), row = rows_[word >> kIndexBits];
    const uint32_t within = (word & ((1u << kIndexBits) - 1)) >> (row & kShiftMask);
    uint32_t i = cells_[(row >> kShiftBits) + within];
    for (int s = (kSteps > 0 ? kSteps : steps_) - 1; s >= 0; --s)
      i += static_cast<uint32_t>(x >= at_[i + (1u << s) - 1]) << s;
    return i;
  }

 private:
  static constexpr uint32_t kExponents = kIsFloat ? 256 : 2048;
  static constexpr uint32_t kShiftBits = WordLadder::kShiftBits;
  static constexpr uint32_t kShiftMask = (1u << kShiftBits) - 1;

  static T not_below(double threshold) {
    const T x = static_cast<T>(threshold);
    return x < threshold ? std::nextafter(x, std::numeric_limits<T>::infinity()) : x;
  }

  LPK_HD static uint32_t upper(T x) {
    uint32_t words[sizeof(T) / 4];
    std::memcpy(words, &x, sizeof x);
    return words[sizeof(T) / 4 - 1];
  }
  static T number(uint32_t upper, uint32_t lower) {
    const uint32_t words[] = {kIsFloat ? upper : lower, upper};
    T x;
    std::memcpy(&x, words, sizeof x);
    return x;
  }

  uint32_t rank_of(T x) const {
    return static_cast<uint32_t>(std::upper_bound(at_.begin(), at_.end(), x) - at_.begin());
  }

  // Adds the fewest cells that hold at most one threshold each, or about two for each threshold of
  // the row; returns the most thresholds that a cell holds.
  uint32_t add_row(uint32_t row) {
    const auto first = static_cast<uint32_t>(cells_.size());
    if (row % kExponents == kExponents - 1) {
      // Infinities.
      cells_.push_back(row < kExponents ? static_cast<uint32_t>(at_.size()) : 0);
      rows_.push_back(first << kShiftBits | kIndexBits);
      return 0;
    }
    const uint32_t inside = fill(row, 0);
    int most_bits = 0;
    while (inside > 1 && most_bits < kIndexBits && (inside >> most_bits) > 0) ++most_bits;
    uint32_t most = inside;
    int bits = 0;
    for (; most > 1 && bits < std::min(most_bits + 1, kIndexBits);) most = fill(row, ++bits);
    rows_.push_back(first << kShiftBits | static_cast<uint32_t>(kIndexBits - bits));
    return most;
  }

  // Makes 2^bits cells, in place of the cells that the row has.
  uint32_t fill(uint32_t row, int bits) {
    if (bits > 0) cells_.resize(cells_.size() - (size_t{1} << (bits - 1)));
    const bool negative = row >= kExponents;
    const uint32_t width = 1u << (kIndexBits - bits);
    uint32_t most = 0;
    for (uint32_t cell = 0; cell < 1u << bits; ++cell) {
      const uint32_t word = (row << kIndexBits) + cell * width;
      const T inner = number(word, 0), outer = number(word + (width - 1), 0xffffffffu);
      cells_.push_back(rank_of(negative ? outer : inner));
      most = std::max(most, rank_of(negative ? inner : outer) - cells_.back());
    }
    return most;
  }

  // Their thresholds and values take 24 KiB, which the first cache holds.
  static constexpr uint32_t kMostEvenCells = 1024;

  static uint32_t magnitude(T x) { return upper(x) & 0x7fffffffu; }

  // Makes cells of 2^shift words, and says whether each holds one threshold at most. The first
  // begins at 0, before the second threshold of either sign, and the last has no end.
  bool add_even_cells(const std::vector<uint32_t>& values) {
    uint32_t second = 0x7fffffffu, last = 0;
    const auto above = std::upper_bound(at_.begin(), at_.end(), T{0});
    if (at_.end() - above > 1) second = magnitude(above[1]);
    if (above - at_.begin() > 1) second = std::min(second, magnitude(above[-2]));
    for (T x : at_) last = std::max(last, magnitude(x) >> even_.shift);
    even_.first = std::min(std::max(second >> even_.shift, 1u) - 1, last);
    even_.count = last - even_.first + 1;
    even_thresholds_.clear();
    even_values_.clear();
    bool fits = even_.count <= kMostEvenCells;
    for (uint32_t i = 0; fits && i < 2 * even_.count; ++i) {
      const uint32_t cell = i % even_.count, sign = i < even_.count ? 0 : 0x80000000u;
      const uint32_t from = (even_.first + cell) << even_.shift;
      const uint32_t end = cell + 1 < even_.count ? from + (1u << even_.shift) - 1 : 0x7f7fffffu;
      const T inner = number(sign | (cell > 0 ? from : 0), 0), outer = number(sign | end, 0);
      const uint32_t low = rank_of(std::min(inner, outer)), high = rank_of(std::max(inner, outer));
      fits = high - low <= 1;
      even_thresholds_.push_back(low < at_.size() ? upper(at_[low]) : 0x7fc00000u);
      even_values_.push_back(values[low]);
      even_values_.push_back(values[std::min<size_t>(low + 1, at_.size())]);
    }
    if (!fits) even_.count = 0;
    return fits;
  }

  std::once_flag once_;
  std::atomic<bool> ready_{false};
  std::vector<T> at_;
  std::vector<uint32_t> rows_, cells_, words_, even_thresholds_, even_values_;
  TableCells even_{};
  int steps_ = 0;
};

}  // namespace

struct Table {
  std::vector<double> values, decoded, thresholds;
  std::vector<uint32_t> words;  // the values as float32
  std::vector<uint32_t> codes;
  int bits;
  uint32_t nan_code;
  double infinity[2];  // what an infinity becomes, and one below zero
  mutable Ladder<double> ladders[kLadders];
  mutable Ladder<float> word_ladders[kLadders];

  explicit Table(const TableParts& parts)
      : values(parts.values, parts.values + parts.count),
        decoded(size_t{1} << parts.bits, static_cast<double>(NAN)),
        thresholds(parts.ladders, parts.ladders + kLadders * (parts.count - 1)),
        codes(parts.codes, parts.codes + parts.count),
        bits(parts.bits),
        nan_code(parts.nan_code < 0 ? kNoCode : static_cast<uint32_t>(parts.nan_code)) {
    const FloatEnvironment environment;
    for (size_t i = 0; i < codes.size(); ++i) {
      decoded[codes[i]] = values[i];
      words.push_back(word_of(values[i]));
    }
    infinity[0] = parts.infinity_is_nan ? static_cast<double>(NAN) : values.back();
    infinity[1] = parts.infinity_is_nan ? static_cast<double>(NAN) : values.front();
  }

  static uint32_t word_of(double x) { return bits_of_float(canonical_float(x)); }

  template <class T>
  const Ladder<T>& ladder_of(Ladder<T>* all, Rounding mode) const {
    const bool draws = mode == Rounding::kStochastic;
    const auto at = static_cast<size_t>(draws ? Rounding::kTowardZero : mode);
    const size_t count = values.size() - 1;
    all[at].make(thresholds.data() + at * count, count, words);
    return all[at];
  }
  const Ladder<double>& ladder(Rounding mode) const { return ladder_of(ladders, mode); }

  // x is no finite number.
  LPK_HD double special(double x) const { return x != x ? x : infinity[x < 0]; }
};

namespace {

struct Registry {
  std::mutex lock;
  std::unordered_map<int64_t, std::unique_ptr<Table>> tables;
};

Registry& registry() {
  static Registry all;
  return all;
}

template <int kSteps>
void round_all(const Table& t, const Ladder<double>& ladder, const double* x, double* y,
               int64_t count) {
  const double* const values = t.values.data();
  for (int64_t i = 0; i < count; ++i) {
    const double r = values[ladder.rank<kSteps>(x[i])];
    y[i] = std::fabs(x[i]) < HUGE_VAL ? r : t.special(x[i]);
  }
}

// The fraction is made in these steps of double, because a gap is no power of two.
double drawn(const Table& t, const Ladder<double>& toward_zero, double x, double threshold) {
  if (!(std::fabs(x) < HUGE_VAL)) return t.special(x);
  if (x <= t.values.front()) return t.values.front();
  if (x >= t.values.back()) return t.values.back();
  const uint32_t i = toward_zero.rank<0>(x);
  const double near = t.values[i], far = t.values[x < 0 ? i - 1 : i + 1];
  const double fraction = (std::fabs(x) - std::fabs(near)) / (std::fabs(far) - std::fabs(near));
  return fraction >= threshold ? far : near;
}

}  // namespace

void add_table(int64_t handle, const TableParts& parts) {
  LPK_CHECK(parts.count >= 2 && parts.bits >= 1 && parts.bits <= 24, "a table has values, codes");
  for (int64_t i = 0; i < parts.count; ++i)
    LPK_CHECK(parts.codes[i] >= 0 && parts.codes[i] >> parts.bits == 0, "codes have their bits");
  const std::lock_guard<std::mutex> guard(registry().lock);
  std::unique_ptr<Table>& place = registry().tables[handle];
  if (place == nullptr) place = std::make_unique<Table>(parts);
}

const Table& table_of(int64_t handle) {
  const std::lock_guard<std::mutex> guard(registry().lock);
  const auto entry = registry().tables.find(handle);
  LPK_CHECK(entry != registry().tables.end(),
            "no table with the handle " + std::to_string(handle) + ": make the format first");
  return *entry->second;
}

double table_min(const Table& t) { return t.values.front(); }
double table_max(const Table& t) { return t.values.back(); }
int table_bits(const Table& t) { return t.bits; }

void round_to_table(const Table& t, Rounding mode, const double* x, const double* thresholds,
                    double* y, int64_t count) {
  const Ladder<double>& ladder = t.ladder(mode);
  if (mode == Rounding::kStochastic) {
    for (int64_t i = 0; i < count; ++i) y[i] = drawn(t, ladder, x[i], thresholds[i]);
  } else if (ladder.steps() == 1) {
    round_all<1>(t, ladder, x, y, count);
  } else {
    round_all<0>(t, ladder, x, y, count);
  }
}

WordLadder word_ladder(const Table& t, Rounding mode) {
  const Ladder<float>& ladder = t.ladder_of(t.word_ladders, mode);
  return {ladder.rows(),  ladder.cells(), ladder.words(),
          t.words.data(), ladder.steps(), {t.word_of(t.infinity[0]), t.word_of(t.infinity[1])}};
}

TableCells table_cells(const Table& t, Rounding mode) {
  TableCells cells = t.ladder_of(t.word_ladders, mode).even_cells();
  for (int i = 0; i < 2; ++i) cells.infinity[i] = t.word_of(t.infinity[i]);
  return cells;
}

uint32_t table_code(const Table& t, double x) {
  if (x != x) return t.nan_code;
  const uint32_t i = t.ladder(Rounding::kTowardNegative).rank<0>(x);
  return t.values[i] == x ? t.codes[i] : kNoCode;
}

double table_value(const Table& t, uint32_t code) { return t.decoded[code]; }

}  // namespace lpk
