// The vocabulary of portable.h in instructions of NEON: two doubles, four words.
#pragma once

#include <arm_neon.h>

#include "hardware_modes.h"
#include "portable.h"

namespace lpk {

template <>
struct Lanes<Vec<2>::D> : VectorLanes<2> {
  LPK_HD static D all(double x) { return (D)vdupq_n_f64(x); }
  // The instruction would leave NaN where one of the two is NaN.
  LPK_HD static D max(D a, D b) { return a > b ? a : b; }
  LPK_HD static D floor(D x) { return (D)vrndmq_f64((float64x2_t)x); }
  LPK_HD static D fma(D a, D b, D c) {
    return (D)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  }
  LPK_HD static D trunc(D x) { return (D)vrndq_f64((float64x2_t)x); }
};

template <>
struct SquareRoot<Bits32<4>::F> {
  LPK_HD static Bits32<4>::F of(Bits32<4>::F x) { return (Bits32<4>::F)vsqrtq_f32((float32x4_t)x); }
};

template <>
LPK_HD Vec<2>::D load_floats<Vec<2>>(const float* p) {
  return (Vec<2>::D)vcvt_f64_f32(vld1_f32(p));
}

template <>
LPK_HD void store_floats<Vec<2>>(float* p, Vec<2>::D x) {
  vst1_f32(p, vcvt_f32_f64((float64x2_t)x));
}

template <>
LPK_HD Vec<2>::D to_doubles<Vec<2>>(Vec<2>::U x) {
  return (Vec<2>::D)vcvtq_f64_u64(vmovl_u32((uint32x2_t)x));
}

namespace {

using Four = Bits32<4>;

template <>
struct BitsOfLanes<Vec<2>> {
  LPK_HD static uint32_t of(Vec<2>::I m) {
    const Vec<2>::I bits = m & Vec<2>::I{1, 2};
    return static_cast<uint32_t>(vaddvq_u64((uint64x2_t)bits));
  }
};

template <>
struct BitsOfLanes<Four> {
  LPK_HD static uint32_t of(Four::I m) {
    const Four::I bits = m & Four::I{1, 2, 4, 8};
    return vaddvq_u32((uint32x4_t)bits);
  }
};

template <>
LPK_HD Four::U halves_as_words<Four>(Four::H h) {
  return (Four::U)vmovl_u16((uint16x4_t)h);
}

template <>
LPK_HD Four::H words_as_halves<Four>(Four::U x) {
  return (Four::H)vmovn_u32((uint32x4_t)x);
}

template <>
LPK_HD Four::U bytes_as_words<Four>(Four::B b) {
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load<uint32_t>(&b)));
  return (Four::U)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}

template <>
LPK_HD Four::B words_as_bytes<Four>(Four::U x) {
  const uint16x4_t halves = vmovn_u32((uint32x4_t)x);
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
  const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
  return load<Four::B>(&four);
}

// The instruction takes the lowest byte of a count, with a sign.
template <>
LPK_HD Four::U shift_right<Four>(Four::U x, Four::U n) {
  const int32x4_t count = vreinterpretq_s32_u32(vminq_u32((uint32x4_t)n, vdupq_n_u32(32)));
  return (Four::U)vshlq_u32((uint32x4_t)x, vnegq_s32(count));
}

template <>
LPK_HD Four::U shift_left<Four>(Four::U x, Four::U n) {
  const uint32x4_t count = vminq_u32((uint32x4_t)n, vdupq_n_u32(32));
  return (Four::U)vshlq_u32((uint32x4_t)x, vreinterpretq_s32_u32(count));
}

// The bytes of a word are looked up by their places.
template <>
LPK_HD Four::U lanes_at<Four>(Four::U x, Four::U i) {
  const Four::U places = (i & 3) * 0x04040404u + 0x03020100u;
  return (Four::U)vqtbl1q_u8((uint8x16_t)x, (uint8x16_t)places);
}

template <>
struct SixteenWords<Four> {
  uint8x16x4_t bytes;

  explicit SixteenWords(const void* from) {
    const auto* p = static_cast<const uint8_t*>(from);
    bytes = {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
  }
  LPK_HD Four::U at(Four::U i) const {
    const Four::U places = (i & 15) * 0x04040404u + 0x03020100u;
    return (Four::U)vqtbl4q_u8(bytes, (uint8x16_t)places);
  }
};

template <>
LPK_HD Four::U gathered<Four>(const uint32_t* from, Four::U i) {
  return Four::U{from[i[0]], from[i[1]], from[i[2]], from[i[3]]};
}

template <>
LPK_HD bool none_above<Four>(Four::U a, uint32_t high) {
  return vmaxvq_s32((int32x4_t)a) <= static_cast<int32_t>(high);
}

template <>
LPK_HD bool all_between<Four>(Four::U a, uint32_t low, uint32_t high) {
  const Four::I outside = (a - low > high - low) & (a != 0);
  return vmaxvq_u32((uint32x4_t)outside) == 0;
}

template <>
LPK_HD WideProduct<Four::U> wide_product<Four>(Four::U x, uint32_t factor) {
  const uint32x4_t a = (uint32x4_t)x, m = vdupq_n_u32(factor);
  const uint32x4_t low = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(m)));
  const uint32x4_t high = vreinterpretq_u32_u64(vmull_high_u32(a, m));
  return {(Four::U)vuzp1q_u32(low, high), (Four::U)vuzp2q_u32(low, high)};
}

// Exact, subnormals too, in every mode of the processor.
template <>
LPK_HD Four::U words_of_float16<Four>(Four::H half) {
  return (Four::U)vcvt_f32_f16((float16x4_t)half);
}

template <>
LPK_HD Four::H float16_of_words<Four>(Four::U x) {
  return (Four::H)vcvt_f16_f32((float32x4_t)x);
}

// Words of a panel, which bytes hold.
typedef int32_t PanelQuarter __attribute__((vector_size(16)));
LPK_HD void store_bytes_of(const PanelQuarter (&words)[4], int8_t* to) {
  const int16x8_t low = vqmovn_high_s32(vqmovn_s32((int32x4_t)words[0]), (int32x4_t)words[1]);
  const int16x8_t high = vqmovn_high_s32(vqmovn_s32((int32x4_t)words[2]), (int32x4_t)words[3]);
  vst1q_s8(to, vqmovn_high_s16(vqmovn_s16(low), high));
}

// Four floats of each of up to 4 rows.
struct QuarterRows4 {
  using F = float32x4_t;
  static constexpr int kRows = 4;
  LPK_HD static F gather(const float* from, int64_t, int rows, int cols) {
    if (rows > 0 && cols == 4) return vld1q_f32(from);
    float x[4] = {};
    for (int c = 0; rows > 0 && c < cols; ++c) x[c] = from[c];
    return vld1q_f32(x);
  }
  LPK_HD static F low(F a, F b) { return vzip1q_f32(a, b); }
  LPK_HD static F high(F a, F b) { return vzip2q_f32(a, b); }
  LPK_HD static F low_pairs(F a, F b) { return (F)vzip1q_f64((float64x2_t)a, (float64x2_t)b); }
  LPK_HD static F high_pairs(F a, F b) { return (F)vzip2q_f64((float64x2_t)a, (float64x2_t)b); }
  LPK_HD static void put(float* to, F x, int rows) {
    if (rows == kRows) return vst1q_f32(to, x);
    for (int r = 0; r < rows; ++r) to[r] = x[r];
  }
};

}  // namespace

struct Neon {
  static constexpr const char *kName = "neon", *kHalfName = "neonfp16";
  static constexpr int kWords = 4, kDoubles = 2, kRegisters = 32;
  static constexpr bool kRoundsAsTold = false, kTransposes = true;
  using Quarter = QuarterRows4;
  using Floats = float32x4_t;
  using Doubles = float64x2_t;
  LPK_HD static Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  LPK_HD static Doubles fma(Doubles a, Doubles b, Doubles c) { return vfmaq_f64(c, a, b); }
  LPK_HD static Floats all(float x) { return vdupq_n_f32(x); }
  // b where a is NaN.
  LPK_HD static Floats max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  LPK_HD static int32x4_t bytes_as_words(const int8_t* p) {
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(load<uint32_t>(p)));
    return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
  }
  LPK_HD static int64x2_t bytes_as_long_words(const int8_t* p) { return int64x2_t{p[0], p[1]}; }
  LPK_HD static void end_stream() {}
};

}  // namespace lpk
