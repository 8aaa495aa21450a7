#include "events.h"

#include <algorithm>
#include <vector>

#include "cpu/drivers/parallel.h"

namespace lpk {

EventCounts matmul_events(const EventArgs& args, int threads) {
  EventKernel* const kernel = kernels().families.events;
  std::vector<EventBlock> blocks;
  for (int64_t row = 0; row < args.m; row += kEventRows) {
    for (int64_t lane = 0; lane < args.n; lane += kPanel) {
      blocks.push_back({&args, row, std::min<int64_t>(kEventRows, args.m - row), lane,
                        std::min<int64_t>(kPanel, args.n - lane)});
    }
  }
  std::vector<EventCounts> counts(blocks.size());
  parallel_for(static_cast<int64_t>(blocks.size()), threads,
               [&](int64_t i) { counts[i] = kernel(blocks[i]); });
  EventCounts total{};
  for (const EventCounts& c : counts) {
    total.swamped += c.swamped;
    total.added += c.added;
    total.swamped_chunks += c.swamped_chunks;
    total.added_chunks += c.added_chunks;
    total.overflowed += c.overflowed;
  }
  return total;
}

}  // namespace lpk
