// What the exact kernel leaves alone.
#pragma once

#include "plan.h"

namespace lpk::cuda {

// Whether certified kernels did this tile of the exact kernel, of side `side`, for good.
LPK_HD bool done_before(const Job& job, int64_t side, int64_t tile) {
  if (job.plan == nullptr || job.plan->tier == Tier::kWide) return false;
  const Sums& s = job.sums;
  const Cut& cut = planned_cut(job);
  const Place at = place_of(s, side, tile);
  const auto flagged = [&](int64_t row, int64_t col) {
    return job.redo[tile_at(s, cut.rows, cut.cols, {at.matrix, row, col})] != 0;
  };
  const int64_t end_row = at.row + side < s.m ? at.row + side : s.m;
  const int64_t end_col = at.col + side < s.n ? at.col + side : s.n;
  for (int64_t row = at.row; row < end_row; row += cut.rows) {
    for (int64_t col = at.col; col < end_col; col += cut.cols) {
      if (flagged(row, col)) return false;
    }
    // Tiles of one row begin at any column.
    if (cut.rows == 1 && flagged(row, end_col - 1)) return false;
  }
  return true;
}

}  // namespace lpk::cuda
