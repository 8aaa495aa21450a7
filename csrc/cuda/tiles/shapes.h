// The tiles that are not square, by their rows and columns. They are those of kShapes and
// kTensorShapes in cut.h.
#pragma once

#include <type_traits>

#include "direct_tile.h"
#include "shaped_tile.h"

namespace lpk::cuda {

template <class Rule, bool kTables, int kRows, int kCols>
using TileOfShape =
    std::conditional_t<kRows == 1 || kCols == 1, DirectTile<Rule, kTables, kRows, kCols>,
                       ShapedTile<Rule, kTables, kRows, kCols>>;

template <int kCount>
using Count = std::integral_constant<int, kCount>;

// Calls visit(rows, columns), as types, for the cut's shape. It is never called for square tiles.
template <class Visit>
void with_shape(const Cut& cut, const Visit& visit) {
  const auto offer = [&](auto rows, auto cols) {
    if (cut.rows == rows && cut.cols == cols) visit(rows, cols);
  };
  offer(Count<128>{}, Count<64>{});
  offer(Count<64>{}, Count<128>{});
  offer(Count<128>{}, Count<32>{});
  offer(Count<32>{}, Count<128>{});
  offer(Count<128>{}, Count<16>{});
  offer(Count<16>{}, Count<128>{});
  offer(Count<512>{}, Count<1>{});
  offer(Count<1>{}, Count<32>{});
}

// The same for tensor cores, with every shape of tiles.
template <class Visit>
void with_tensor_shape(const Cut& cut, const Visit& visit) {
  if (is_square(cut)) return visit(Count<128>{}, Count<128>{});
  if (cut.rows == 128) return visit(Count<128>{}, Count<64>{});
  visit(Count<64>{}, Count<128>{});
}

}  // namespace lpk::cuda
