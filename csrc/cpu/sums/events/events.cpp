#include "events.h"

#include <algorithm>
#include <vector>

#include "cpu/drivers/parallel.h"

namespace lpk {
namespace {

// Counts, and the bits of each addition where they are wanted.
class Counter final : public EventSink {
 public:
  explicit Counter(const EventArgs& args) : args_(args) {
    const int64_t chunk = args.accumulator[InAccumulator::kChunk];
    chunks_ = chunk > 0 ? (args.k + chunk - 1) / chunk : 0;
  }

  void take(const EventPiece& piece) override {
    for (int64_t r = 0; r < piece.rows; ++r) {
      const int64_t row = r * kEventDepth;
      const int64_t products = piece.to - piece.from;
      LaneBits over = 0;
      for (int64_t i = row; i < row + products; ++i) over |= piece.over[i];
      for (int64_t i = row; i < row + piece.chunk_count; ++i) over |= piece.over_chunks[i];
      overflowed_[r] |= over;
      counts_.added += lanes_in(piece.added + row, products);
      counts_.swamped += lanes_in(piece.lost + row, products);
      counts_.added_chunks += lanes_in(piece.added_chunks + row, piece.chunk_count);
      counts_.swamped_chunks += lanes_in(piece.lost_chunks + row, piece.chunk_count);
      if (args_.products != nullptr) {
        write(piece, piece.lost + row, piece.over + row, products,
              args_.products + ((piece.row + r) * args_.k + piece.from) * args_.n);
      }
      if (args_.chunks != nullptr) {
        write(piece, piece.lost_chunks + row, piece.over_chunks + row, piece.chunk_count,
              args_.chunks + ((piece.row + r) * chunks_ + piece.first_chunk) * args_.n);
      }
    }
  }

  EventCounts counts() const {
    EventCounts c = counts_;
    c.overflowed = lanes_in(overflowed_, kEventRows);
    return c;
  }

 private:
  static int64_t lanes_in(const LaneBits* masks, int64_t count) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += __builtin_popcount(masks[i]);
    return total;
  }
  void write(const EventPiece& piece, const LaneBits* lost, const LaneBits* over, int64_t count,
             uint8_t* to) const {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t l = 0; l < kPanel && piece.lane + l < args_.n; ++l) {
        to[i * args_.n + piece.lane + l] =
            static_cast<uint8_t>((lost[i] >> l & 1) * kSwamped | (over[i] >> l & 1) * kOverflowed);
      }
    }
  }

  const EventArgs& args_;
  int64_t chunks_;
  EventCounts counts_{};
  LaneBits overflowed_[kEventRows] = {};
};

// Which products pass a gradient: for each row of a block, k masks at pass + r * pass_row.
class Passing final : public EventSink {
 public:
  Passing(const MaskArgs& args, LaneBits* pass, int64_t pass_row)
      : args_(args),
        chunk_(args.events.accumulator[InAccumulator::kChunk]),
        pass_(pass),
        pass_row_(pass_row) {}

  void take(const EventPiece& piece) override {
    rows_ = piece.rows;
    if (args_.recursive) over_.resize(static_cast<size_t>(rows_ * args_.events.k));
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t k = piece.from; k < piece.to; ++k) {
        const int64_t i = r * kEventDepth + k - piece.from;
        pass_[r * pass_row_ + k] = passes(piece.lost[i], piece.over[i]);
        if (args_.recursive) over_[r * args_.events.k + k] = piece.over[i];
      }
      for (int64_t c = 0; c < piece.chunk_count; ++c) {
        const int64_t i = r * kEventDepth + c;
        chunks_[r].push_back(passes(piece.lost_chunks[i], piece.over_chunks[i]));
        chunks_over_[r].push_back(piece.over_chunks[i]);
      }
    }
  }

  // A lost chunk loses all its products; an overflow reaches back to the start of its sum.
  void finish() {
    const bool reaches_back = args_.recursive && (args_.bits & kOverflowed) != 0;
    const int64_t length = args_.events.k;
    const int64_t chunk = chunk_ > 0 ? chunk_ : length;
    for (int64_t r = 0; r < rows_; ++r) {
      LaneBits* const pass = pass_ + r * pass_row_;
      LaneBits outer_over = 0;
      for (int64_t start = (length - 1) / chunk * chunk; start >= 0; start -= chunk) {
        LaneBits whole = 0xffff;
        if (chunk_ > 0) {
          const size_t c = static_cast<size_t>(start / chunk);
          outer_over |= chunks_over_[r][c];
          whole = chunks_[r][c] & (reaches_back ? ~outer_over : 0xffff);
        }
        LaneBits over = 0;
        for (int64_t k = std::min(start + chunk, length) - 1; k >= start; --k) {
          if (reaches_back) over |= over_[r * length + k];
          pass[k] &= whole & ~over;
        }
      }
    }
  }

 private:
  LaneBits passes(LaneBits lost, LaneBits over) const {
    const LaneBits gone =
        ((args_.bits & kSwamped) != 0 ? lost : 0) | ((args_.bits & kOverflowed) != 0 ? over : 0);
    return static_cast<LaneBits>(~gone);
  }

  const MaskArgs& args_;
  const int64_t chunk_;
  LaneBits* const pass_;
  const int64_t pass_row_;
  int64_t rows_ = 0;
  std::vector<LaneBits> over_;
  std::vector<LaneBits> chunks_[kEventRows], chunks_over_[kEventRows];
};

// The masks of some rows at a time: so many that they stay in a cache of 2 MiB.
constexpr int64_t kMasksAtOnce = 1 << 19;

// Panels of b and of g, with zeros past the edge; the masks of the rows at hand.
struct MaskedProduct {
  const MaskArgs& args;
  const EventArgs& e;
  const EventKernels& by;
  const int threads;
  const int64_t panels;
  std::vector<float> b, g, right;  // panels x k, rows x panels, panels x k
  std::vector<LaneBits> pass;      // rows x panels x k

  MaskedProduct(const MaskArgs& of, int used)
      : args(of),
        e(of.events),
        by(*kernels().families.events),
        threads(used),
        panels((e.n + kPanel - 1) / kPanel),
        b(static_cast<size_t>(panels * e.k * kPanel)),
        g(static_cast<size_t>(e.m * panels * kPanel)),
        right(b.size()) {
    for (int64_t j = 0; j < e.n; ++j) {
      const int64_t panel = j / kPanel, lane = j % kPanel;
      for (int64_t k = 0; k < e.k; ++k)
        b[(panel * e.k + k) * kPanel + lane] = e.b[k * e.b_k + j * e.b_col];
    }
    for (int64_t r = 0; r < e.m; ++r)
      std::copy_n(args.g + r * e.n, e.n, g.data() + r * panels * kPanel);
  }

  void run() {
    const int64_t each = std::max<int64_t>(1, panels * e.k);
    const int64_t step = std::max<int64_t>(1, kMasksAtOnce / each / kEventRows) * kEventRows;
    pass.resize(static_cast<size_t>(std::min(step, e.m) * panels * e.k));
    for (int64_t row = 0; row < e.m; row += step) run_rows(row, std::min(step, e.m - row));
    for (int64_t j = 0; j < e.n; ++j) {
      const int64_t panel = j / kPanel, lane = j % kPanel;
      for (int64_t k = 0; k < e.k; ++k)
        args.right[k * e.n + j] = right[(panel * e.k + k) * kPanel + lane];
    }
  }

  void run_rows(int64_t first, int64_t count) {
    const int64_t groups = (count + kEventRows - 1) / kEventRows;
    parallel_for(groups * panels, threads, [&](int64_t i) {
      const int64_t row = i / panels * kEventRows, panel = i % panels;
      const int64_t rows = std::min<int64_t>(kEventRows, count - row);
      Passing sink(args, pass.data() + (row * panels + panel) * e.k, panels * e.k);
      const int64_t lane = panel * kPanel;
      by.count({&e, first + row, rows, lane, std::min<int64_t>(kPanel, e.n - lane), &sink});
      sink.finish();
    });
    parallel_for(count, threads, [&](int64_t r) {
      const float* top = g.data() + (first + r) * panels * kPanel;
      by.masked_row({top, b.data(), pass.data() + r * panels * e.k, panels, e.k,
                     args.left + (first + r) * e.k});
    });
    // Rows of a with k side by side.
    std::vector<float> rows(static_cast<size_t>(count * e.k));
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t k = 0; k < e.k; ++k) rows[r * e.k + k] = e.a[(first + r) * e.a_row + k * e.a_k];
    }
    parallel_for(panels, threads, [&](int64_t panel) {
      by.masked_panel({g.data() + (first * panels + panel) * kPanel, rows.data(),
                       pass.data() + panel * e.k, panels * kPanel, e.k, panels * e.k, count, e.k,
                       right.data() + panel * e.k * kPanel});
    });
  }
};

}  // namespace

EventCounts matmul_events(const EventArgs& args, int threads) {
  const EventKernels& by = *kernels().families.events;
  std::vector<EventBlock> blocks;
  for (int64_t row = 0; row < args.m; row += kEventRows) {
    for (int64_t lane = 0; lane < args.n; lane += kPanel) {
      blocks.push_back({&args, row, std::min<int64_t>(kEventRows, args.m - row), lane,
                        std::min<int64_t>(kPanel, args.n - lane), nullptr});
    }
  }
  std::vector<EventCounts> counts(blocks.size());
  parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t i) {
    Counter counter(args);
    EventBlock block = blocks[i];
    block.sink = &counter;
    by.count(block);
    counts[i] = counter.counts();
  });
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

void masked_gradients(const MaskArgs& args, int threads) { MaskedProduct(args, threads).run(); }

}  // namespace lpk
