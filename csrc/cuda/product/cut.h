// How a product is cut into blocks: a pure function of its sizes and of the processors, in host
// code.
#pragma once

#include <iterator>

#include "tiles.h"

namespace lpk::cuda {

// A tile that certified kernels make. beside: how many such tiles a processor should hold side by
// side. cost: the work of a product by the counts of bench/cuda_counts.py, with tables and chunks
// of 64, in the units of the tile's table below.
struct TileShape {
  int32_t rows, cols, beside, cost;
};
// split: the cost of split sums, in eighths of the cost of whole sums. The sums of their chunks
// must be written, read and added.
struct TileShapes {
  const TileShape* at;
  int count, split;
};
// Every kernel has the first shape; shapes.h has the others. These costs are those of the tiers
// that plan.h's has_shapes names, in sixteenths of an instruction.
constexpr TileShape kShapes[] = {{128, 128, 1, 61}, {128, 64, 1, 64}, {64, 128, 1, 64},
                                 {128, 32, 2, 69},  {32, 128, 2, 68}, {128, 16, 4, 72},
                                 {16, 128, 4, 72},  {512, 1, 6, 246}, {1, 32, 24, 494}};
// The same shapes for float32's own sums. Costs are in 32nds.
constexpr TileShape kFloatShapes[] = {{128, 128, 1, 58}, {128, 64, 1, 63}, {64, 128, 1, 63},
                                      {128, 32, 2, 72},  {32, 128, 2, 71}, {128, 16, 4, 79},
                                      {16, 128, 4, 78},  {512, 1, 6, 426}, {1, 32, 24, 876}};
// The same shapes for sums made odd and in double. Costs are those of sums made odd, with the
// floor, in eighths.
constexpr TileShape kRareShapes[] = {{128, 128, 1, 74}, {128, 64, 1, 76}, {64, 128, 1, 76},
                                     {128, 32, 2, 78},  {32, 128, 2, 78}, {128, 16, 4, 80},
                                     {16, 128, 4, 80},  {512, 1, 5, 174}, {1, 32, 20, 293}};
// The shapes on tensor cores, with costs in 256ths. Split sums wait for memory more than for tensor
// cores.
constexpr TileShape kTensorShapes[] = {{128, 128, 1, 104}, {128, 64, 2, 132}, {64, 128, 2, 133}};

constexpr TileShapes kSquares = {kShapes, 1, 9};
constexpr TileShapes kAllShapes = {kShapes, static_cast<int>(std::size(kShapes)), 9};
constexpr TileShapes kAllFloatShapes = {kFloatShapes, static_cast<int>(std::size(kFloatShapes)), 9};
constexpr TileShapes kAllRareShapes = {kRareShapes, static_cast<int>(std::size(kRareShapes)), 9};
constexpr TileShapes kAllTensorShapes = {kTensorShapes, static_cast<int>(std::size(kTensorShapes)),
                                         22};

// Where sums are split, a processor makes at most so many tiles one after another.
constexpr int64_t kMostWaves = 4;

// chunks: how many the longest sums have, or 1 where there are no chunks. parts: how many sums of
// chunks may wait. A processor holds several small tiles side by side, each at its share of the
// speed. Sums are split where that pays for itself on the busiest processor.
inline Cut cut_of(const Sums& s, int64_t chunks, int64_t processors, int64_t parts,
                  const TileShapes& shapes) {
  const int64_t room = parts / (s.count * s.m * s.n);
  const int64_t passes = room < 1 ? 0 : ceil_div(chunks, room);
  const int64_t in_pass = passes == 0 ? 0 : ceil_div(chunks, passes);
  Cut best{};
  int64_t least = -1;
  for (int n = 0; n < shapes.count; ++n) {
    const TileShape& shape = shapes.at[n];
    const int64_t tiles = tile_count(s, shape.rows, shape.cols);
    const int64_t places = processors * shape.beside;
    const int64_t price = int64_t{shape.beside} * shape.rows * shape.cols * shape.cost;
    const auto offer = [&](int64_t cost, int64_t splits, int64_t turns, int64_t length) {
      if (least >= 0 && cost >= least) return;
      least = cost;
      best = {shape.rows,
              shape.cols,
              tiles,
              static_cast<int32_t>(splits),
              static_cast<int32_t>(turns),
              static_cast<int32_t>(length)};
    };
    offer(8 * price * ceil_div(tiles, places) * chunks, 1, 1, chunks);
    for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
      const int64_t most = waves * places / tiles;
      if (most < 2 || in_pass < 2) continue;
      const int64_t length = ceil_div(in_pass, most < in_pass ? most : in_pass);
      offer(shapes.split * price * passes * waves * length, ceil_div(in_pass, length), passes,
            length);
    }
  }
  return best;
}

}  // namespace lpk::cuda
