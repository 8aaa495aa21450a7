// One row times a panel, block after block: the terms of a block, and the place that all are cut
// to.
#pragma once

#include <algorithm>

#include "common/orders.h"
#include "cpu/drivers/tile.h"
#include "cpu/lanes/lanes.h"
#include "grouped.h"

namespace lpk {
namespace {

template <class V>
class GroupedSums {
 public:
  using D = typename V::D;
  using L = Lanes<D>;
  static constexpr int kVectors = kPanel / V::kWidth;

  GroupedSums(const GroupedRule& rule, const GroupedSide& row, const GroupedSide& panel,
              double* sums)
      : rule_(rule), row_(row), panel_(panel), sums_(sums) {}

  void run() {
    D sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = at(sums_, 0, v);
    for (int64_t first = 0; first < rule_.k; first += rule_.acc.block) {
      add_terms(first, std::min(first + rule_.acc.block, rule_.k));
      for (int v = 0; v < kVectors; ++v) {
        const AlignedPlace<D> place = operand_place<D>(largest_[v], sum[v], rule_.acc);
        D units = place.cut(sum[v]);
        for (int i = 0; i < count_; ++i) units += place.cut(terms_[i][v]);
        sum[v] = rounded_block<D>(units, place, rule_.acc, D{});
      }
    }
    for (int v = 0; v < kVectors; ++v) store(sums_ + v * V::kWidth, sum[v]);
  }

 private:
  LPK_HD static D at(const double* from, int64_t line, int v) {
    return load<D>(from + line * kPanel + v * V::kWidth);
  }
  static int64_t segment(int64_t k, int64_t size) { return size > 0 ? k / size : 0; }
  static int64_t end_of_segment(int64_t k, int64_t size, int64_t end) {
    return size > 0 ? std::min((k / size + 1) * size, end) : end;
  }

  // The terms of first .. end - 1 and their largest place, one stretch of constant scales after the
  // other.
  void add_terms(int64_t first, int64_t end) {
    count_ = 0;
    for (D& largest : largest_) largest = D{};
    for (int64_t k = first, stop; k < end; k = stop) {
      stop = std::min(end_of_segment(k, rule_.a_size, end), end_of_segment(k, rule_.b_size, end));
      const int64_t left = segment(k, rule_.a_size), right = segment(k, rule_.b_size);
      D scale[kVectors], place[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        scale[v] = L::all(row_.scales[left]) * at(panel_.scales, right, v);
        place[v] = L::all(row_.scale_places[left]) * at(panel_.scale_places, right, v);
      }
      if (rule_.group == 1) {
        add_products(k, stop, scale, place);
      } else {
        add_groups(k, stop, scale, place);
      }
    }
  }

  void add_products(int64_t first, int64_t end, const D (&scale)[kVectors],
                    const D (&place)[kVectors]) {
    D largest[kVectors] = {};
    for (int64_t k = first; k < end; ++k, ++count_) {
      const D a = L::all(row_.codes[k]), a_place = L::all(row_.places[k]);
      for (int v = 0; v < kVectors; ++v) {
        terms_[count_][v] = a * at(panel_.codes, k, v) * scale[v];
        largest[v] = L::max(a_place * at(panel_.places, k, v), largest[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) largest_[v] = L::max(largest[v] * place[v], largest_[v]);
  }

  void add_groups(int64_t first, int64_t end, const D (&scale)[kVectors],
                  const D (&place)[kVectors]) {
    for (int64_t k = first; k < end; k += rule_.group, ++count_) {
      D total[kVectors] = {};
      for (int64_t i = k; i < std::min(k + rule_.group, end); ++i) {
        const D a = L::all(row_.codes[i]);
        for (int v = 0; v < kVectors; ++v) total[v] += a * at(panel_.codes, i, v);
      }
      for (int v = 0; v < kVectors; ++v) terms_[count_][v] = total[v] * scale[v];
    }
    for (int v = 0; v < kVectors; ++v) largest_[v] = L::max(place[v], largest_[v]);
  }

  const GroupedRule& rule_;
  const GroupedSide &row_, &panel_;
  double* const sums_;
  int count_ = 0;
  D largest_[kVectors];
  D terms_[kMaxBlock][kVectors];
};

}  // namespace
}  // namespace lpk
