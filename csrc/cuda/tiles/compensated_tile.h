// Kahan's sums.
#pragma once

#include "ordered_tile.h"

namespace lpk::cuda {

template <bool kNearest>
class CompensatedTile : public OrderedTile<kNearest> {
  using Base = OrderedTile<kNearest>;
  using Base::kOutputs;
  using Base::thread_;

 public:
  using Stage = Stages;
  struct Shared : OrderedShared {
    Kept<float> error;
  };
  using Base::Base;

  LPK_HD void begin(Shared* shared) const {
    this->begin_sums(shared);
    for (int n = 0; n < kOutputs; ++n) shared->error[n][thread_] = 0.0f;
  }

  LPK_HD void multiply(Shared* shared, int buffer, const Stages& stage) const {
    const int count = stage.count();
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      double sum = shared->sum[n][thread_], error = shared->error[n][thread_];
      LPK_LOOP
      for (int step = 0; step < count; ++step) {
        const int64_t at = this->position(stage.first() + step);
        const double p = this->product(shared, buffer, step, n, at);
        if (absent(p)) continue;
        // There are no draws, because the order has no stochastic rounding.
        const auto add = [&](double x, double y) { return this->add(x, y, n, 0); };
        add_compensated<double>(sum, error, p, add);
      }
      shared->sum[n][thread_] = static_cast<float>(sum);
      shared->error[n][thread_] = static_cast<float>(error);
    }
  }

  LPK_HD void close(Shared* shared, int64_t chunk) const {
    LPK_LOOP
    for (int n = 0; n < kOutputs; ++n) {
      this->close_sum(shared, n, chunk);
      shared->error[n][thread_] = 0.0f;
    }
  }
};

}  // namespace lpk::cuda
