#include "grouped.h"

#include <algorithm>
#include <vector>

#include "common/orders.h"
#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

constexpr int64_t kRows = 64;

// Values and the places that they count with.
struct Placed {
  std::vector<double> values, places;

  void resize(int64_t size) {
    values.resize(size);
    places.resize(size);
  }
  void put(int64_t i, double x, double least) {
    values[i] = x;
    places[i] = counted_binade<double>(x, least);
  }
  // count values at from, one beside the other.
  void read(const float* from, int64_t count, double least) {
    resize(count);
    for (int64_t i = 0; i < count; ++i) put(i, from[i], least);
  }
};

class GroupedProduct {
 public:
  explicit GroupedProduct(const GroupedArgs& args)
      : args_(args),
        rule_{accumulator_from(args.accumulator), args.k, args.a_size, args.b_size, args.group},
        least_(power_of_two(static_cast<int>(args.least))) {}

  // Some rows of a panel.
  void run(int64_t batch, int64_t first_row, int64_t col) const {
    thread_local Placed b, scale, row, row_scale;
    const int64_t lanes = std::min<int64_t>(kPanel, args_.n - col);
    pack(batch, col, lanes, &b, &scale);
    const int64_t segments = segments_of(args_.k, args_.a_size);
    for (int64_t m = first_row; m < std::min(first_row + kRows, args_.m); ++m) {
      const int64_t line = batch * args_.m + m;
      row.read(args_.a + line * args_.k, args_.k, rule_.acc.left_min_normal);
      row_scale.read(args_.a_scale + line * segments, segments, least_);
      double sums[kPanel] = {};
      const int64_t place = line * args_.n + col;
      for (int64_t l = 0; args_.initial != nullptr && l < lanes; ++l)
        sums[l] = round_to<double>(args_.initial[place + l], rule_.acc.fmt, rule_.acc.rounding, 0);
      kernel_(
          rule_,
          {row.values.data(), row.places.data(), row_scale.values.data(), row_scale.places.data()},
          {b.values.data(), b.places.data(), scale.values.data(), scale.places.data()}, sums);
      for (int64_t l = 0; l < lanes; ++l) args_.c[place + l] = canonical_float(sums[l]);
    }
    count_products(Tier::kDouble, std::min(kRows, args_.m - first_row) * kPanel * args_.k);
  }

 private:
  // Lanes past the end are zeros.
  void pack(int64_t batch, int64_t col, int64_t lanes, Placed* b, Placed* scale) const {
    const int64_t segments = segments_of(args_.k, args_.b_size);
    b->resize(args_.k * kPanel);
    scale->resize(segments * kPanel);
    const float* from = args_.b + batch * args_.k * args_.n + col;
    const float* scales = args_.b_scale + (batch * args_.n + col) * segments;
    for (int64_t k = 0; k < args_.k; ++k) {
      for (int64_t l = 0; l < kPanel; ++l)
        b->put(k * kPanel + l, l < lanes ? from[k * args_.n + l] : 0, rule_.acc.right_min_normal);
    }
    for (int64_t s = 0; s < segments; ++s) {
      for (int64_t l = 0; l < kPanel; ++l)
        scale->put(s * kPanel + l, l < lanes ? scales[l * segments + s] : 0, least_);
    }
  }

  const GroupedArgs& args_;
  const GroupedRule rule_;
  const double least_;
  GroupedKernel* const kernel_ = kernels().families.grouped;
};

}  // namespace

void matmul_grouped(const GroupedArgs& args, int threads) {
  const GroupedProduct product(args);
  const int64_t panels = (args.n + kPanel - 1) / kPanel, tall = (args.m + kRows - 1) / kRows;
  parallel_for(args.batch * tall * panels, threads, [&](int64_t i) {
    product.run(i / (tall * panels), i / panels % tall * kRows, i % panels * kPanel);
  });
}

}  // namespace lpk
