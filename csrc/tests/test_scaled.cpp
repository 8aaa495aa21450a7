// Products by scale of the chosen instruction set against plain loops.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "cpu/drivers/gemm.h"
#include "groups.h"

namespace lpk_test {
namespace {

using lpk::ScaleOrder;

struct Case {
  int64_t m, n, k, left_size, right_size;
  ScaleOrder order;
  bool bytes;  // codes are integers of 8 bits
};

int64_t count_of(int64_t k, int64_t size) { return size > 0 ? (k + size - 1) / size : 1; }
int64_t scale_at(int64_t k, int64_t size) { return size > 0 ? k / size : 0; }

float added(float outer, float c, float a, float b, ScaleOrder order) {
  if (order == ScaleOrder::kLeft) return std::fma(c * a, b, outer);
  if (order == ScaleOrder::kRight) return std::fma(c * b, a, outer);
  return std::fma(c, a * b, outer);
}

bool ends(int64_t k, int64_t size) { return size > 0 && k % size == 0; }

void run(const Case& c, std::mt19937* random) {
  std::vector<float> a(c.m * c.k), b(c.k * c.n), y(c.m * c.n);
  std::vector<float> left(c.m * count_of(c.k, c.left_size));
  std::vector<float> right(c.n * count_of(c.k, c.right_size));
  const auto fill = [&](std::vector<float>* x, int most, float unit) {
    std::uniform_int_distribution<int> codes(-most, most);
    for (float& value : *x) value = static_cast<float>(codes(*random)) * unit;
  };
  fill(&a, c.bytes ? 127 : 4095, c.bytes ? 1.0f : 0.25f);
  fill(&b, 12, 0.5f);
  fill(&left, 15, 0.0625f);
  fill(&right, 15, 0.0625f);
  int64_t ints[lpk::kAccumulatorInts] = {};
  const int64_t fp32[lpk::kFormatInts] = {0, 8, 23, 127, 0, 1, 0, 0};
  std::copy_n(fp32, lpk::kFormatInts, ints + lpk::InAccumulator::kFormat);
  std::copy_n(fp32, lpk::kFormatInts, ints + lpk::InAccumulator::kOuter);
  ints[lpk::InAccumulator::kChunk] = -1;
  const int64_t zero[1] = {0};
  const lpk::MatmulArgs args{a.data(), b.data(), nullptr, y.data(), 1, c.m, c.n,
                             c.k,      zero,     zero,    c.k,      1, c.n, 1};
  const lpk::MatmulScales scales{left.data(), right.data(), zero,   zero,
                                 c.left_size, c.right_size, c.order};
  lpk::matmul(args, {ints}, 0, 2, &scales);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      float outer = 0, inner = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        inner = std::fma(a[i * c.k + k], b[k * c.n + j], inner);
        if (k + 1 < c.k && !ends(k + 1, c.left_size) && !ends(k + 1, c.right_size)) continue;
        const float s = left[i * count_of(c.k, c.left_size) + scale_at(k, c.left_size)];
        const float t = right[j * count_of(c.k, c.right_size) + scale_at(k, c.right_size)];
        outer = added(outer, inner, s, t, c.order);
        inner = 0;
      }
      CHECK_SAME(y[i * c.n + j], outer,
                 text("%d x %d x %d, order %d", int(c.m), int(c.n), int(c.k), int(c.order)));
    }
  }
}

}  // namespace

void test_scaled() {
  std::mt19937 random(7);
  for (bool bytes : {true, false}) {
    for (ScaleOrder order :
         {ScaleOrder::kExact, ScaleOrder::kProduct, ScaleOrder::kLeft, ScaleOrder::kRight}) {
      run({29, 37, 100, 16, 16, order, bytes}, &random);
      run({13, 50, 301, 5, 7, order, bytes}, &random);
      run({1, 16, 3, 0, 2, order, bytes}, &random);
      run({7, 3, 700, 0, 320, order, bytes}, &random);
    }
  }
}

}  // namespace lpk_test
