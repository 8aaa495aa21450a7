#include "events.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "tile.h"

namespace lpk {
namespace {

EventKernel kernel_for(const char* isa) {
#if defined(LPK_X86)
  if (std::strncmp(isa, "avx512", 6) == 0) return events_avx512;
  if (std::strcmp(isa, "avx2") == 0) return events_avx2;
#endif
  return events_scalar;
}

}  // namespace

EventCounts matmul_events(const EventArgs& args, int threads) {
  const EventKernel kernel = kernel_for(kernels().isa);
  std::vector<EventBlock> blocks;
  for (int64_t row = 0; row < args.m; row += kEventRows) {
    for (int64_t lane = 0; lane < args.n; lane += kEventLanes) {
      blocks.push_back({&args, row, std::min(kEventRows, args.m - row), lane,
                        std::min(kEventLanes, args.n - lane)});
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
