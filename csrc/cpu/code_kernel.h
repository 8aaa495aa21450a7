// Codes of float formats, sign | exponent | mantissa, from and to the bits of float32 values.
//
// A magnitude's bits without those that the format drops are its code but for a constant; below the
// floor of WordFormat, codes are counts of the smallest value.
#pragma once

#include "float_bits.h"
#include "tile.h"
#include "word_format.h"

namespace lpk {
namespace {

struct WordCodes {
  WordFormat f;
  uint32_t bits;  // of a code
  uint32_t magic_bits;
  uint32_t first_normal;  // code of the floor
  uint32_t offset;        // what bits >> dropped is more than the code
  uint32_t infinity;      // kNoCode where the format has none
  uint32_t nan;
  uint32_t last_number;  // codes above it are NaN
  bool subnormals;

  explicit WordCodes(const Format& format) : f(format), subnormals(format.subnormals) {
    const uint32_t m = static_cast<uint32_t>(format.man_bits);
    const uint32_t top = ((1u << format.exp_bits) - 1) << m;
    const uint32_t magnitudes = top | ((1u << m) - 1);
    bits = 1 + static_cast<uint32_t>(format.exp_bits) + m;
    std::memcpy(&magic_bits, &f.magic, sizeof magic_bits);
    first_normal = (format.emin < -126 ? 2u : 1u) << m;
    offset = (f.floor >> f.dropped) - first_normal;
    infinity = format.specials == Specials::kIeee ? top : kNoCode;
    nan = kNoCode;
    last_number = magnitudes;
    if (format.specials == Specials::kFn) {
      nan = magnitudes;
      last_number = magnitudes - 1;
    } else if (format.specials == Specials::kIeee) {
      if (m > 0) nan = top | 1u << (m - 1);
      last_number = top;
    }
  }
};

// Without subnormals, magic counts whole values of min_normal: only 0 is exact below it.
template <class V>
bool encode_words(const CodeBlock& job, const float* x, uint32_t* codes) {
  using U = typename V::U;
  const Format format = number_format(job.format);
  if (!WordFormat::fits(format)) return false;
  const WordCodes c(format);
  const WordFormat f = c.f;
  const uint32_t mask = (1u << f.dropped) - 1;
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const U b = load<U>(x + i);
    const U a = b & ~kSignWord;
    const U sign = (b & kSignWord) >> (32 - c.bits);
    const auto small = above<V>(U{} + f.floor, a);
    const U shifted = as_words<V>(as_floats<V>(a) + f.magic);
    const U whole = as_words<V>(as_floats<V>(shifted) - f.magic);
    const U lost = small ? whole ^ a : a & mask;
    const U infinity = c.infinity == kNoCode ? U{} + kNoCode : c.infinity | sign;
    U code = sign | (small ? shifted - c.magic_bits : (a >> f.dropped) - c.offset);
    code = lost != 0 ? U{} + kNoCode : code;
    code = above<V>(a, U{} + f.max) ? U{} + kNoCode : code;
    code = a == kInfinityWord ? infinity : code;
    code = above<V>(a, U{} + kInfinityWord) ? U{} + c.nan : code;
    store(codes + i, code);
  }
  return true;
}

template <class V>
bool decode_words(const CodeBlock& job, const uint32_t* codes, float* x) {
  using U = typename V::U;
  const Format format = number_format(job.format);
  if (!WordFormat::fits(format)) return false;
  const WordCodes c(format);
  const uint32_t magnitude_mask = (1u << (c.bits - 1)) - 1;
  const uint32_t keep_small = c.subnormals ? 0xffffffffu : 0;
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const U code = load<U>(codes + i);
    const U magnitude = code & magnitude_mask;
    const U sign = (code << (32 - c.bits)) & kSignWord;
    const U small = as_words<V>(as_floats<V>(magnitude + c.magic_bits) - c.f.magic) & keep_small;
    U r = above<V>(U{} + c.first_normal, magnitude) ? small : (magnitude + c.offset) << c.f.dropped;
    r = magnitude == c.infinity ? U{} + kInfinityWord : r;
    r = above<V>(magnitude, U{} + c.last_number) ? U{} + kNanWord : r | sign;
    store(x + i, r);
  }
  return true;
}

}  // namespace
}  // namespace lpk
