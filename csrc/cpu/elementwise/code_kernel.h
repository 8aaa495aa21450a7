// Codes of float formats, sign | exponent | mantissa, from and to the bits of float32 values; codes
// of fixed formats by way of integers.
//
// The bits of a magnitude, without those that the format drops, differ from its code by a constant.
// Below the floor of WordFormat, codes are counts of the smallest value.
#pragma once

#include "cpu/drivers/tile.h"
#include "cpu/lanes/lanes.h"
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
  bool one_zero;  // its NaN is the code of -0

  explicit WordCodes(const Format& format)
      : f(format), subnormals(format.subnormals), one_zero(format.one_zero) {
    const uint32_t m = static_cast<uint32_t>(format.man_bits);
    const uint32_t top = ((1u << format.exp_bits) - 1) << m;
    const uint32_t magnitudes = top | ((1u << m) - 1);
    bits = 1 + static_cast<uint32_t>(format.exp_bits) + m;
    magic_bits = bits_of_float(f.magic);
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
    } else if (one_zero) {
      nan = magnitudes + 1;
      if (format.specials == Specials::kP3109) infinity = magnitudes;
    }
  }
};

// The code of a magnitude that is a value of the format, without its sign. Without subnormals,
// magic counts whole values of min_normal: only 0 is exact below it. `lost`: other than 0 where the
// magnitude lies between two values.
template <class V>
LPK_HD typename V::U number_code(const WordCodes& c, typename V::U a, typename V::U& lost) {
  using U = typename V::U;
  const auto small = above<V>(U{} + c.f.floor, a);
  const U shifted = as_words<V>(as_floats<V>(a) + c.f.magic);
  const U whole = as_words<V>(as_floats<V>(shifted) - c.f.magic);
  lost = small ? whole ^ a : a & ((1u << c.f.dropped) - 1);
  return small ? shifted - c.magic_bits : (a >> c.f.dropped) - c.offset;
}

// The code of a value of the format.
template <class V>
LPK_HD typename V::U code_of_value(const WordCodes& c, typename V::U x) {
  using U = typename V::U;
  const U a = x & ~kSignWord;
  U lost;
  U code = number_code<V>(c, a, lost);
  code = a == kInfinityWord ? U{} + c.infinity : code;
  code |= (x & kSignWord) >> (32 - c.bits);
  return above<V>(a, U{} + kInfinityWord) ? U{} + c.nan : code;
}

template <class V>
LPK_HD typename V::U value_of_code(const WordCodes& c, typename V::U code) {
  using U = typename V::U;
  const U magnitude = code & ((1u << (c.bits - 1)) - 1);
  const U sign = (code << (32 - c.bits)) & kSignWord;
  U small = as_words<V>(as_floats<V>(magnitude + c.magic_bits) - c.f.magic);
  if (!c.subnormals) small = U{};
  U r = above<V>(U{} + c.first_normal, magnitude) ? small : (magnitude + c.offset) << c.f.dropped;
  r = magnitude == c.infinity ? U{} + kInfinityWord : r;
  r = above<V>(magnitude, U{} + c.last_number) ? U{} + kNanWord : r | sign;
  if (c.one_zero) r = code == c.nan ? U{} + kNanWord : r == kSignWord ? U{} : r;
  return r;
}

// All kinds of values, those without a code among them.
template <class V>
void encode_any(const WordCodes& c, const CodeBlock& job, const float* x, uint32_t* codes) {
  using U = typename V::U;
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const U b = load<U>(x + i);
    const U a = b & ~kSignWord;
    U sign = (b & kSignWord) >> (32 - c.bits);
    if (c.one_zero) sign = a == 0 ? U{} : sign;
    const U infinity = c.infinity == kNoCode ? U{} + kNoCode : c.infinity | sign;
    U lost;
    U code = sign | number_code<V>(c, a, lost);
    code = lost != 0 ? U{} + kNoCode : code;
    code = above<V>(a, U{} + c.f.max) ? U{} + kNoCode : code;
    code = a == kInfinityWord ? infinity : code;
    code = above<V>(a, U{} + kInfinityWord) ? U{} + c.nan : code;
    store(codes + i, code);
  }
}

// Whether a fixed format's integers are float32 values, and its quantum and 1 / quantum too.
inline bool integers_fit(const Format& f) {
  return f.modulus <= 0x1p24 && f.quantum >= 0x1p-126 && f.quantum <= 0x1p126;
}

template <class V>
Coding encode_integers(const CodeBlock& job, const Format& f, const float* x, uint32_t* codes) {
  using F = typename V::F;
  using U = typename V::U;
  const float quantum = static_cast<float>(f.quantum);
  const float inverse = static_cast<float>(1 / f.quantum);
  const float low = static_cast<float>(f.lowest / f.quantum);
  const float high = static_cast<float>(f.max / f.quantum);
  const uint32_t mask = static_cast<uint32_t>(f.modulus) - 1;
  uint32_t others = 0;
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const F value = load<F>(x + i), n = value * inverse;
    const auto whole = converted<typename V::I>(((n >= low) & (n <= high)) ? n : F{});
    // The value itself is compared, because n may be a small number that became 0.
    others |= lanes_unlike<V>(converted<F>(whole) * quantum, value);
    store(codes + i, (U)whole & mask);
  }
  // The caller finds the value without a code.
  return others == 0 ? Coding::kAll : Coding::kNotTaken;
}

template <class V>
void decode_integers(const CodeBlock& job, const Format& f, const uint32_t* codes, float* x) {
  using U = typename V::U;
  const float quantum = static_cast<float>(f.quantum);
  const int above = 32 - static_cast<int>(job.format[InFixed::kWordBits]);
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const U top = load<U>(codes + i) << above;
    const auto n = f.lowest < 0 ? (typename V::I)top >> above : (typename V::I)(top >> above);
    store(x + i, converted<typename V::F>(n) * quantum);
  }
}

// Most pieces hold only finite values of the format, for which a few operations and a look at the
// end suffice.
template <class V>
Coding encode_words(const CodeBlock& job, const float* x, uint32_t* codes) {
  using U = typename V::U;
  const Format format = number_format(job.format);
  if (format.kind == Kind::kFixed && integers_fit(format))
    return encode_integers<V>(job, format, x, codes);
  if (!WordFormat::fits(format)) return Coding::kNotTaken;
  const WordCodes c(format);
  U others{};
  for (int64_t i = 0; i < job.count; i += V::kWidth) {
    const U b = load<U>(x + i);
    const U a = b & ~kSignWord;
    U lost;
    const U code = number_code<V>(c, a, lost);
    // The sign of max - a, which is set for magnitudes above max.
    others |= lost | ((c.f.max - a) & kSignWord);
    if (c.one_zero) others |= b == kSignWord ? b : U{};
    store(codes + i, (b & kSignWord) >> (32 - c.bits) | code);
  }
  if (lane_bits<V>(others != 0) == 0) return Coding::kAll;
  encode_any<V>(c, job, x, codes);
  bool some = false;
  for (int64_t i = 0; i < job.count; ++i) some |= codes[i] == kNoCode;
  return some ? Coding::kSome : Coding::kAll;
}

template <class V>
void narrow_codes(const uint32_t* codes, int64_t count, int bits, uint8_t* to) {
  using U = typename V::U;
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const U code = load<U>(codes + i);
    if (bits == 8) {
      store(to + i, words_as_bytes<V>(code));
    } else {
      store(to + 2 * i, words_as_halves<V>(code));
    }
  }
}

template <class V>
bool decode_words(const CodeBlock& job, const uint32_t* codes, float* x) {
  const Format format = number_format(job.format);
  if (format.kind == Kind::kFixed && integers_fit(format)) {
    decode_integers<V>(job, format, codes, x);
    return true;
  }
  if (!WordFormat::fits(format)) return false;
  const WordCodes c(format);
  for (int64_t i = 0; i < job.count; i += V::kWidth)
    store(x + i, value_of_code<V>(c, load<typename V::U>(codes + i)));
  return true;
}

}  // namespace
}  // namespace lpk
