#include "cpu/isa/kernels.h"
#include "cpu/isa/vector_tiers.h"
#include "cpu/sums/half/half_sums.h"

namespace lpk {
namespace {

#if defined(LPK_AVX512FP16)
void accumulate_half_first(const Tile& t) {
  const Accumulator acc = accumulator_from(t.accumulator);
  const OperandRange a = range_of_a(t);
  const OperandRange& b = range_of_b(t);
  const bool other = t.spread() || acc.rounds_every_step();
  const HalfSums sums = other ? HalfSums{} : half_sums(t, acc, a, b);
  if (!sums.valid) return accumulate_certified<Vec<8>>(t, acc, a, b, run_truncated_avx512vnni);
  const bool outer_is_half = half_precision(acc.outer) && acc.outer_rounding == acc.rounding;
  run_half_tile(t.marked(), sums, outer_is_half);
  count_products(Tier::kHardware, t.rows * t.lanes * t.depth);
}
#endif

constexpr Kernels with_accumulate(const char* isa, void (*accumulate)(const Tile&)) {
  return {isa,
          accumulate,
          accumulate_ordered_avx512,
          add_block<Vec<8>>,
          transpose,
          copy_panels,
          measure,
          round_block<Vec<8>>,
          round_elements<Bits32<16>>,
          encode_words<Bits32<16>>,
          decode_words<Bits32<16>>,
          narrow_codes<Bits32<16>>,
          affine_span<Vec<8>>,
          widen_floats<Vec<8>>,
          narrow_floats<Vec<8>>,
          widen_range<Vec<8>>};
}

}  // namespace

const Kernels kAvx512Kernels = with_accumulate("avx512", accumulate_tile<Vec<8>>);
#if defined(LPK_AVX512FP16)
const Kernels kAvx512Fp16Kernels = with_accumulate("avx512fp16", accumulate_half_first);
#endif

}  // namespace lpk
