#include "work_blocks.h"

#include <algorithm>
#include <numeric>

namespace lpk {
namespace {

// In a block of fewer rows than this, packing B takes a share of the time that shows. No block is
// smaller, unless a thread would have nothing to do.
constexpr int64_t kFewestRows = 96;

// The number of blocks into which a product's rows are cut. Its lanes are cut into `others` blocks
// already.
int64_t row_parts(const Product& p, int64_t others, int threads) {
  const int64_t groups = ceil_div(p.rows, kRowGroup);
  const int64_t most = p.spread && p.lanes <= kPanel ? kSpreadRows : kUnitRows;
  const int64_t fewest = ceil_div(p.rows, most);
  if (threads == 1) return fewest;
  const int64_t enough = ceil_div(4 * threads, others);
  const int64_t parts =
      std::max({fewest, std::min(enough, p.rows / kFewestRows), ceil_div(threads, others)});
  // Where there are few blocks, every thread gets the same number.
  const int64_t even = parts < enough ? threads / std::gcd(threads, others) : 1;
  return std::max(fewest, std::min(ceil_div(parts, even) * even, ceil_div(groups, 2)));
}

// `count` products share the threads.
void cut_product(const Product& p, int64_t count, int threads, std::vector<WorkBlock>* blocks) {
  const int64_t enough = threads > 1 ? 4 * threads : 1;
  const int64_t fewest = count * ceil_div(p.lanes, kLanes) * ceil_div(p.rows, kUnitRows);
  const int64_t most_lanes = fewest < enough ? kLanes / 2 : kLanes;
  const int64_t columns = std::max<int64_t>(ceil_div(p.lanes, most_lanes), 1);
  const int64_t width = ceil_div(ceil_div(p.lanes, columns), kPanel) * kPanel;
  const int64_t parts = row_parts(p, count * columns, threads);
  const int64_t groups = ceil_div(p.rows, kRowGroup);
  const size_t first = blocks->size();
  for (int64_t lane = 0; lane < p.lanes; lane += width) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t row = part * groups / parts * kRowGroup;
      const int64_t end = std::min(p.rows, (part + 1) * groups / parts * kRowGroup);
      blocks->push_back({&p, {row, end - row}, {lane, std::min(width, p.lanes - lane)}, 0.0});
    }
  }
  const double all = static_cast<double>(blocks->size() - first);
  for (size_t i = first; i < blocks->size(); ++i)
    (*blocks)[i].place = static_cast<double>(i - first) / all;
}

// Blocks of the same place in their products, which write to the same lines of memory, follow each
// other: the longest sums first, so that short ones even out when threads end.
void sort_by_place(std::vector<WorkBlock>* blocks) {
  const auto before = [](const WorkBlock& a, const WorkBlock& b) {
    if (a.product->family != b.product->family) return a.product->family < b.product->family;
    if (a.place != b.place) return a.place < b.place;
    if (a.product->length != b.product->length) return a.product->length > b.product->length;
    // No two blocks of a product have one place.
    return a.product < b.product;
  };
  std::sort(blocks->begin(), blocks->end(), before);
}

// One thread takes all blocks of a place, which then share what they read and write. Places that
// the threads cannot share evenly are taken block by block.
void take_turns(const std::vector<WorkBlock>& blocks, int threads, std::vector<Turn>* turns) {
  turns->clear();
  const int64_t count = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < count; ++i) {
    const Product* first = turns->empty() ? nullptr : blocks[turns->back().first].product;
    const Product& p = *blocks[i].product;
    const bool follows = first != nullptr && p.family >= 0 && p.family == first->family;
    if (!follows || &p == first) turns->push_back({i, i});
    turns->back().end = i + 1;
  }
  const size_t whole = turns->size() - turns->size() % static_cast<size_t>(std::max(threads, 1));
  if (whole == turns->size()) return;
  const int64_t rest = (*turns)[whole].first;
  turns->resize(whole);
  for (int64_t i = rest; i < count; ++i) turns->push_back({i, i + 1});
}

}  // namespace

void cut(const std::vector<Product>& products, int threads, std::vector<WorkBlock>* blocks,
         std::vector<Turn>* turns) {
  blocks->clear();
  const int64_t count = static_cast<int64_t>(products.size());
  for (const Product& p : products) cut_product(p, count, threads, blocks);
  if (count > 0 && products[0].family >= 0) sort_by_place(blocks);
  take_turns(*blocks, threads, turns);
}

}  // namespace lpk
