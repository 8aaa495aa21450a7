// One matrix product of the chosen instruction set against a plain loop for each output.
#pragma once

#include "check.h"
#include "cpu/drivers/gemm.h"
#include "sums.h"

namespace lpk_fuzz {

struct Shape {
  int64_t batch, m, k, n;
};

// Where the elements lie: as they come, transposed, or every third one with a gap.
enum class Layout { kRows, kColumns, kGaps };

struct Strides {
  int64_t row, col, size;
};

inline Strides strides_of(Layout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case Layout::kRows:
      return {cols, 1, rows * cols};
    case Layout::kColumns:
      return {1, rows, rows * cols};
    default:
      return {3 * cols + 1, 3, rows * (3 * cols + 1)};
  }
}

struct MatmulCase {
  Shape shape;
  Data data;
  Layout a_layout, b_layout;
  bool bias;
  bool shared_b;  // one B for every entry of the batch
  int threads;
  int exponent = 0;  // operands are multiplied by 2^exponent
};

inline void check_matmul(const AccumulatorSpec& spec, const MatmulCase& c, Source source) {
  constexpr uint64_t kSeed = 0x112210f47de98115;
  const auto [batch, m, k, n] = c.shape;
  const Strides as = strides_of(c.a_layout, m, k);
  const Strides bs = strides_of(c.b_layout, k, n);
  const std::vector<float> a = operands(c.data, source, batch * as.size, c.exponent);
  const std::vector<float> b =
      operands(c.data, source, (c.shared_b ? 1 : batch) * bs.size, c.exponent);
  const std::vector<float> bias = operands(c.data, source, n);
  std::vector<float> got(static_cast<size_t>(batch * m * n), 12345.0f);
  std::vector<int64_t> a_offset, b_offset;
  for (int64_t i = 0; i < batch; ++i) {
    a_offset.push_back(i * as.size);
    b_offset.push_back(c.shared_b ? 0 : i * bs.size);
  }
  const lpk::MatmulArgs args{{a.data(), a_offset.data(), as.row, as.col},
                             {b.data(), b_offset.data(), bs.col, bs.row},
                             c.bias ? bias.data() : nullptr,
                             got.data(),
                             batch,
                             m,
                             n,
                             k};
  lpk::matmul(args, {spec.ints().data()}, kSeed, c.threads);

  const PlainSum sum(spec, kSeed);
  for (int64_t entry = 0; entry < batch; ++entry) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const auto tap = [&](int64_t l) -> Tap {
          return {true, a[a_offset[entry] + i * as.row + l * as.col],
                  b[b_offset[entry] + l * bs.row + j * bs.col]};
        };
        const float want = sum.run(k, static_cast<uint64_t>(entry * m + i),
                                   static_cast<uint64_t>(j), tap, c.bias ? &bias[j] : nullptr);
        CHECK_SAME(got[(entry * m + i) * n + j], want,
                   text("%s, (%d, %d, %d) batch %d, %s data: element (%d, %d, %d)",
                        spec.name.c_str(), int(m), int(k), int(n), int(batch),
                        kDataNames[static_cast<int>(c.data)], int(entry), int(i), int(j)));
      }
    }
  }
}

}  // namespace lpk_fuzz
