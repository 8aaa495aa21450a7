// The base of every kernel of sums in other orders: the operands of some rows against one panel,
// and the roundings of an Accumulator.
#pragma once

#include "common/orders.h"
#include "cpu/sums/exact/double_kernel.h"

namespace lpk {
namespace {

constexpr uint32_t kAllLanes = (1u << kPanel) - 1;

// Sums to nearest_even in a float format with a mantissa are rounded inside the loops, and all
// other sums by functions that the loops call.
template <class V, int kGroup>
struct OrderedSums : Panel<V> {
  using D = typename V::D;
  using Base = Panel<V>;
  using Base::t, Base::acc, Base::b, Base::row, Base::lane, Base::state, Base::left;
  static constexpr int kRows = kGroup;
  static constexpr int kVectors = kPanel / V::kWidth;

  const ChunkEnd& chunk_end;
  const bool nearest;  // how sums round
  const bool nearest_products;
  AccumulatorDraws<V, kRows> draws;

  OrderedSums(const Panel<V>& panel, const ChunkEnd& end)
      : Panel<V>(panel),
        chunk_end(end),
        nearest(plain_nearest(acc.fmt, acc.rounding)),
        nearest_products(plain_nearest(acc.product, acc.product_rounding)),
        draws(acc) {
    draws.start(t, row, lane);
  }

  // Where the sum that holds a position starts and ends.
  LPK_HD int64_t sum_start(int64_t at) const {
    return acc.chunk > 0 ? at / acc.chunk * acc.chunk : 0;
  }
  LPK_HD int64_t sum_end(int64_t start) const {
    return acc.chunk > 0 ? std::min(start + acc.chunk, t.length) : t.length;
  }

  // The lanes that have a product.
  LPK_HD uint32_t present(int r, int64_t k) const {
    return t.row_absent(row + r, k) ? 0 : kAllLanes & ~t.absent_lanes(lane, k);
  }
  LPK_HD static D where(uint32_t lanes, int v, D x, D otherwise) {
    if (lanes == kAllLanes) return x;
    return marked_lanes<V>(lanes, v * V::kWidth) ? x : otherwise;
  }

  LPK_HD D right(int v, int64_t k) const { return load<D>(b + k * kPanel + v * V::kWidth); }

  LPK_HD D exact_product(int r, int v, int64_t k) const { return left(r, v, k) * right(v, k); }
  LPK_HD D rounded_product(int r, int v, int64_t k) {
    const D exact = exact_product(r, v, k);
    if (nearest_products) return round_to_float_nearest_even<D>(exact, acc.product);
    return product_in_any_way(exact, r, v, k);
  }
  // The product, with a call where it is rounded: trees and Kahan's sums are too long to round it
  // inside their loops.
  LPK_HD D product(int r, int v, int64_t k) {
    return acc.has_product ? product_apart(r, v, k) : exact_product(r, v, k);
  }
  __attribute__((noinline)) D product_apart(int r, int v, int64_t k) {
    return rounded_product(r, v, k);
  }
  __attribute__((noinline)) D product_in_any_way(D exact, int r, int v, int64_t k) {
    const D threshold = draws.of_product(r, v, t.position_of(k));
    return round_to<D>(exact, acc.product, acc.product_rounding, threshold);
  }

  // A sum that double holds exactly, or made odd; `key` is its place in a draw.
  LPK_HD D rounded(D sum, int r, int v, int64_t key) {
    if (nearest) return round_to_float_nearest_even<D>(sum, acc.fmt);
    return rounded_in_any_way(sum, r, v, key);
  }
  __attribute__((noinline)) D rounded_in_any_way(D sum, int r, int v, int64_t key) {
    return round_to<D>(sum, acc.fmt, acc.rounding, draws.of_sum(r, v, key));
  }
  // x is a value of the format, p one or a product.
  LPK_HD D add(D x, D p, int r, int v, int64_t key) {
    if (nearest) return round_to_float_nearest_even<D>(odd_sum<D>(x, p), acc.fmt);
    return add_in_any_way(x, p, r, v, key);
  }
  __attribute__((noinline)) D add_in_any_way(D x, D p, int r, int v, int64_t key) {
    return add_rounded<D>(x, p, acc.fmt, acc.rounding, draws.of_sum(r, v, key));
  }

  // Calls span(from, to) for the products of each sum (of a chunk, or of all) that the block holds,
  // and close(chunk) where a sum ends. There may be no products, as for_each_span has it.
  template <class Span, class Close>
  LPK_HD void for_each_sum(const Span& span, const Close& close) {
    for_each_span(t, acc.chunk, [&](int64_t from, int64_t to, int64_t closed) {
      if (from < to) span(from, to);
      if (closed >= 0) close(closed);
    });
    if (acc.chunk == 0 && t.position_of(t.depth) == t.length) close(0);
  }

  // The finished sums, in the outer accumulator if there are chunks; inner is +0 then.
  LPK_HD void finish(const D (&sum)[kRows][kVectors], int64_t chunk) {
    store_sums(sum);
    if (acc.chunk > 0) chunk_end.close(t, row, kRows, lane, static_cast<uint64_t>(chunk));
  }
  LPK_HD void store_sums(const D (&sum)[kRows][kVectors]) const {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_floats<V>(state(t.inner, r, v), sum[r][v]);
    }
  }
};

}  // namespace
}  // namespace lpk
