// The packing of one value, and the place where the value goes. Kernels and the host share this.
#pragma once

#include "cuda/product/sums.h"

namespace lpk::cuda {

// A block packs kPackSide x kPackSide elements, by 32 x 8 threads with four elements each.
constexpr int kPackSide = 32;
constexpr int kPackRows = 8;

// Shared memory holds the square by rows. Rows are one word longer there than in the square, so
// that neighbours of a row and of a column lie in different banks. Thread x of a warp takes element
// x of row or column i.
struct SquarePlace {
  int row, col;
  static constexpr int kPitch = kPackSide + 1;
  LPK_HD int word() const { return row * kPitch + col; }
};
LPK_HD SquarePlace square_place(int x, int i, bool along_columns) {
  return along_columns ? SquarePlace{x, i} : SquarePlace{i, x};
}

LPK_HD uint32_t last_set_bit(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffs(static_cast<int>(x))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(x));
#endif
}

LPK_HD Facts merged(const Facts& a, const Facts& b) {
  return {a.mantissas | b.mantissas, a.highest > b.highest ? a.highest : b.highest,
          a.lowest > b.lowest ? a.lowest : b.lowest,
          a.last_place > b.last_place ? a.last_place : b.last_place};
}

LPK_HD Facts facts_of(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude == 0 || bits == kAbsent) return {0, 0, 0, 0};
  const uint32_t mantissa = magnitude & 0x7fffffu;
  const uint32_t exponent = magnitude >> 23;
  // The one bit of a power of two is at place 23.
  const uint32_t place = mantissa == 0 ? 23 : last_set_bit(mantissa);
  return {mantissa, exponent, 255 - exponent, 512 - (exponent + place)};
}

// One value on its way into an operand.
LPK_HD float packed(float x, const FusedRule& rule) {
  if (!rule.rounds) return canonical_float(x);
  return canonical_float(round_to<double>(x, rule.fmt, rule.rounding, 0.0));
}

LPK_HD int64_t frame_places(const FrameArgs& a) {
  return a.height[0] * a.height[1] * (a.fold * a.run);
}

// The element at a place of a frame's channel: its offset in the image's channel, or none.
struct Framed {
  bool inside;
  int64_t at;
};
LPK_HD Framed framed(const FrameArgs& a, int64_t place) {
  const int64_t line = a.fold * a.run;
  const int64_t column = place % line;
  const int64_t row = place / line;
  const int64_t x = column % a.run * a.fold + column / a.run - a.before[2];
  const int64_t y = row % a.height[1] - a.before[1];
  const int64_t z = row / a.height[1] - a.before[0];
  const bool inside = x >= 0 && x < a.size[2] && y >= 0 && y < a.size[1] && z >= 0 && z < a.size[0];
  return {inside, z * a.steps[2] + y * a.steps[3] + x * a.steps[4]};
}

LPK_HD int64_t framed_at(const FrameArgs& a, int64_t image, int64_t channel, int64_t place) {
  const int64_t places = frame_places(a);
  const int64_t within = a.channels_last ? place * a.channels + channel : channel * places + place;
  return image * (places * a.channels) + within;
}

}  // namespace lpk::cuda
