// Words and fields of a stream of codes: for the kernels and for tests on the host.
#pragma once

#include "block_map.h"
#include "common/codes.h"

namespace lpk::cuda {

constexpr int64_t kNoneRefused = INT64_MAX;

// Word `index` of the codes of `count` values, with all codes that reach into it. *refused becomes
// the smallest index of a value that has no code, if this index is smaller.
LPK_HD uint32_t code_word(const Codec& codec, const float* x, int64_t count, int64_t index,
                          int64_t* refused) {
  const int bits = codec.bits();
  const int64_t begin = 32 * index;
  uint32_t word = 0;
  for (int64_t i = begin / bits; i < count && i * bits < begin + 32; ++i) {
    const uint32_t code = codec.encode(x[i]);
    if (code == kNoCode) {
      *refused = i < *refused ? i : *refused;
      continue;
    }
    const int shift = static_cast<int>(i * bits - begin);
    word |= shift < 0 ? code >> -shift : code << shift;
  }
  return word;
}

// The field of at most 32 bits from a bit of the stream on.
LPK_HD uint32_t field_at(const uint8_t* codes, int64_t bytes, int64_t bit, int bits) {
  const int64_t first = bit >> 3;
  const int shift = static_cast<int>(bit & 7);
  uint64_t field = 0;
  for (int64_t i = 0; 8 * i < shift + bits && first + i < bytes; ++i)
    field |= static_cast<uint64_t>(codes[first + i]) << (8 * i);
  return static_cast<uint32_t>(field >> shift) & (0xffffffffu >> (32 - bits));
}

// Joins a field to a stream of zeros that other threads write too.
LPK_HD void join_word(uint32_t* word, uint32_t part) {
#if defined(__CUDA_ARCH__)
  if (part != 0) atomicOr(word, part);
#else
  *word |= part;
#endif
}
LPK_HD void join_field(uint32_t* words, int64_t bit, uint32_t field, int bits) {
  const int shift = static_cast<int>(bit & 31);
  join_word(words + (bit >> 5), field << shift);
  if (shift + bits > 32) join_word(words + (bit >> 5) + 1, field >> (32 - shift));
}

// Packs one lane's part of a block: its codes, and the block's scale, which lane 0 writes. NaN is a
// code of whole blocks only: beside other values it is refused, as an infinity always is.
LPK_HD void pack_block(const BlockSpan& span, int lane, int lanes, const Extent& extent,
                       const BlockElement& element, const Codec& codec, const float* x,
                       uint32_t* words, int64_t* refused) {
  const int exponent = element.exponent_for(extent.largest);
  const uint32_t scale = static_cast<uint32_t>(exponent + kScaleBias);
  if (lane == 0)
    join_field(words, span.bit, extent.special ? kNanScale : scale, BlockShape::kScaleBits);
  const double down = power_of_two(-exponent);
  for (int64_t i = lane; i < span.count; i += lanes) {
    const int64_t index = span.first + i * span.step;
    const float value = x[index];
    uint32_t code = 0;
    bool known = true;
    if (extent.special) {
      known = !extent.number || fabsf(value) < HUGE_VALF;
    } else {
      code = codec.encode(value * down);
      known = code != kNoCode;
    }
    if (!known) {
      *refused = index < *refused ? index : *refused;
      continue;
    }
    join_field(words, span.bit + BlockShape::kScaleBits + i * codec.bits(), code, codec.bits());
  }
}

LPK_HD void unpack_block(const BlockSpan& span, int lane, int lanes, const Codec& codec,
                         const uint8_t* codes, int64_t bytes, float* x) {
  const uint32_t scale = field_at(codes, bytes, span.bit, BlockShape::kScaleBits);
  const double up = scale == kNanScale ? static_cast<double>(NAN)
                                       : power_of_two(static_cast<int>(scale) - kScaleBias);
  for (int64_t i = lane; i < span.count; i += lanes) {
    const int64_t bit = span.bit + BlockShape::kScaleBits + i * codec.bits();
    x[span.first + i * span.step] =
        canonical_float(codec.decode(field_at(codes, bytes, bit, codec.bits())) * up);
  }
}

}  // namespace lpk::cuda
