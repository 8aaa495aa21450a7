// The baseline "naive": an emulated product as simulators usually write it. For each output and
// each k, one multiplication and one addition in float32, then the bits of the result rounded.
//
// Plain scalar C++ at -O3, rows over threads. Sums are rounded twice (to float32, then to the
// format), so it is a measure of speed and not of what is right. IEEE formats with subnormals.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

enum Rounding { kNearestEven = 0, kTowardZero = 2, kStochastic = 6 };

struct Format {
  int exp_bits;
  int man_bits;
};

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

int exponent_of(float x) { return static_cast<int>(bits_of(x) >> 23 & 0xff) - 127; }

uint32_t random_word(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

float round_mantissa(float x, int man_bits, int rounding, uint32_t& state) {
  const int dropped = 23 - man_bits;
  if (dropped == 0) return x;
  const uint32_t mask = (1u << dropped) - 1;
  uint32_t bits = bits_of(x);
  if (rounding == kNearestEven) bits += (mask >> 1) + (bits >> dropped & 1);
  if (rounding == kStochastic) bits += random_word(state) & mask;
  return float_of(bits & ~mask);
}

float round_bits(float x, Format f, int rounding, uint32_t& state) {
  const int exponent = exponent_of(x);
  if (exponent == 128) return x;
  const int emax = (1 << (f.exp_bits - 1)) - 1;
  const int emin = 1 - emax;
  if (exponent < emin) {
    // Beside the smallest normal value, subnormals have the mantissa's own last place.
    const float shift = std::copysign(std::ldexp(1.0f, emin), x);
    return round_mantissa(x + shift, f.man_bits, rounding, state) - shift;
  }
  const float rounded = round_mantissa(x, f.man_bits, rounding, state);
  return exponent_of(rounded) > emax ? std::copysign(HUGE_VALF, x) : rounded;
}

}  // namespace

// c (m, n) = a (m, k) b (k, n), contiguous; product_exp_bits = 0 leaves products unrounded.
extern "C" void naive_matmul(const float* a, const float* b, float* c, int64_t m, int64_t k,
                             int64_t n, int exp_bits, int man_bits, int product_exp_bits,
                             int product_man_bits, int rounding, int threads) {
  const Format format{exp_bits, man_bits};
  const Format product_format{product_exp_bits, product_man_bits};
  (void)threads;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads)
#endif
  for (int64_t i = 0; i < m; ++i) {
    uint32_t state = static_cast<uint32_t>(i) * 2654435761u + 1;
    for (int64_t j = 0; j < n; ++j) {
      float acc = 0;
      for (int64_t l = 0; l < k; ++l) {
        float product = a[i * k + l] * b[l * n + j];
        if (product_exp_bits > 0) {
          product = round_bits(product, product_format, kNearestEven, state);
        }
        acc = round_bits(acc + product, format, rounding, state);
      }
      c[i * n + j] = acc;
    }
  }
}
