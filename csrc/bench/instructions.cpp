// lpk_instructions ACCUMULATOR K BITS: one product of 60 x K by K x 64 on one thread, of operands
// with so many mantissa bits, for tools that count instructions (bench/instructions.py).
// ACCUMULATOR is a name below, or `float32`: the plain loop of the compiler of this program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/drivers/gemm.h"
#include "fuzz/specs.h"

namespace {

// Operands have kMost products in each sum, so that making them takes the same for every K.
constexpr int64_t kM = 60, kN = 64, kMost = 256;

void plain(const float* a, const float* b, float* c, int64_t k) {
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < kN; ++j) c[i * kN + j] += a[i * kMost + l] * b[l * kN + j];
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  using lpk_fuzz::AccumulatorSpec;
  const AccumulatorSpec specs[] = {
      AccumulatorSpec{"e6m9_chunk64", lpk_fuzz::float_ints(6, 9)}.chunked(64),
      {"e5m10", lpk_fuzz::float_ints(5, 10)},
      {"e6m9:stochastic", lpk_fuzz::float_ints(6, 9), lpk::Rounding::kStochastic},
  };
  const int64_t k = argc == 4 ? std::atoll(argv[2]) : 0;
  const int bits = argc == 4 ? std::atoi(argv[3]) : 0;
  if (k <= 0 || k > kMost || bits < 1 || bits > 23) {
    std::fprintf(stderr, "usage: lpk_instructions ACCUMULATOR K BITS\n");
    return 1;
  }
  // From -2 to 2.
  std::vector<float> a(kM * kMost), b(kMost * kN), c(kM * kN);
  uint32_t state = 1;
  for (std::vector<float>* x : {&a, &b}) {
    for (float& value : *x) {
      state = state * 747796405u + 2891336453u;
      const float any = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-22f;
      const uint32_t dropped = (1u << (23 - bits)) - 1;
      uint32_t word;
      std::memcpy(&word, &any, sizeof word);
      value = lpk::float_of_bits(word & ~dropped);
    }
  }
  const int64_t offset = 0;
  const lpk::MatmulArgs args{a.data(), b.data(), nullptr, c.data(), 1, kM, kN,
                             k,        &offset,  &offset, kMost,    1, kN, 1};
  if (std::strcmp(argv[1], "float32") == 0) {
    plain(a.data(), b.data(), c.data(), k);
  } else {
    const AccumulatorSpec* chosen = nullptr;
    for (const AccumulatorSpec& spec : specs) {
      if (spec.name == argv[1]) chosen = &spec;
    }
    if (chosen == nullptr) {
      std::fprintf(stderr, "unknown accumulator %s\n", argv[1]);
      return 1;
    }
    lpk::matmul(args, {chosen->ints().data()}, 7, 1);
  }
  float sum = 0;
  for (float value : c) sum += value;
  std::printf("%.9g\n", static_cast<double>(sum));
  return 0;
}
