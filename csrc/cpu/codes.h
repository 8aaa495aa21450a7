// Codes of values, one at a time, and dense streams of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../common/accumulate.h"
#include "element_types.h"
#include "tile.h"

namespace lpk {
namespace {

constexpr uint32_t kCanonicalNan = 0x7fc00000u;

// Codes of one element format.
class Codec {
 public:
  explicit Codec(const int64_t* ints) : f_(number_format(ints)) {
    fixed_ = f_.kind == Kind::kFixed;
    bits_ = fixed_ ? static_cast<int>(ints[1]) : 1 + f_.exp_bits + f_.man_bits;
    if (fixed_) return;
    top_ = (1u << f_.exp_bits) - 1;
    mantissa_mask_ = (1u << f_.man_bits) - 1;
  }

  int bits() const { return bits_; }

  // The code of a value of the format, kNoCode if there is none.
  uint32_t encode(float value) const { return fixed_ ? encode_fixed(value) : encode_float(value); }
  float decode(uint32_t code) const { return fixed_ ? decode_fixed(code) : decode_float(code); }

 private:
  uint32_t encode_fixed(double x) const {
    if (!(x >= f_.lowest && x <= f_.max)) return kNoCode;
    const double n = x / f_.quantum;
    if (n != std::floor(n)) return kNoCode;
    return static_cast<uint32_t>(static_cast<int64_t>(n)) & (0xffffffffu >> (32 - bits_));
  }

  float decode_fixed(uint32_t code) const {
    double n = code;
    if (f_.lowest < 0 && n >= f_.modulus / 2) n -= f_.modulus;
    return static_cast<float>(n * f_.quantum);
  }

  uint32_t encode_float(double x) const {
    const uint32_t sign = (std::signbit(x) ? 1u : 0u) << (bits_ - 1);
    const double a = std::fabs(x);
    if (a != a) return encode_nan();
    if (a == HUGE_VAL) return f_.specials == Specials::kIeee ? sign | top_ << f_.man_bits : kNoCode;
    if (a > f_.max) return kNoCode;
    if (a == 0) return sign;
    const int e = std::max(std::ilogb(a), f_.emin);
    const double n = std::ldexp(a, f_.man_bits - e);
    if (n != std::floor(n)) return kNoCode;
    const uint32_t significand = static_cast<uint32_t>(n);
    const uint32_t hidden = 1u << f_.man_bits;
    if (significand < hidden) return f_.subnormals ? sign | significand : kNoCode;
    return sign | static_cast<uint32_t>(e - f_.emin + 1) << f_.man_bits | (significand - hidden);
  }

  uint32_t encode_nan() const {
    if (f_.specials == Specials::kFn) return top_ << f_.man_bits | mantissa_mask_;
    if (f_.specials == Specials::kIeee && f_.man_bits > 0)
      return top_ << f_.man_bits | 1u << (f_.man_bits - 1);
    return kNoCode;
  }

  float decode_float(uint32_t code) const {
    const uint32_t exponent = code >> f_.man_bits & top_;
    const uint32_t mantissa = code & mantissa_mask_;
    const bool negative = (code >> (bits_ - 1) & 1u) != 0;
    if (f_.specials == Specials::kIeee && exponent == top_) {
      if (mantissa != 0) return float_of_bits(kCanonicalNan);
      return negative ? -HUGE_VALF : HUGE_VALF;
    }
    if (f_.specials == Specials::kFn && exponent == top_ && mantissa == mantissa_mask_) {
      return float_of_bits(kCanonicalNan);
    }
    const bool normal = exponent > 0;
    const double n = normal ? mantissa + (1u << f_.man_bits) : mantissa;
    const int e = normal ? static_cast<int>(exponent) + f_.emin - 1 : f_.emin;
    // Without subnormals the codes of exponent 0 are all zeros.
    const double a = !normal && !f_.subnormals ? 0.0 : std::ldexp(n, e - f_.man_bits);
    return static_cast<float>(negative ? -a : a);
  }

  Format f_;
  bool fixed_;
  int bits_;
  uint32_t top_ = 0;
  uint32_t mantissa_mask_ = 0;
};

// Appends and reads fields of up to 32 bits, from a byte boundary on.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}
  void put(uint32_t field, int bits) {
    pending_ |= static_cast<uint64_t>(field) << held_;
    held_ += bits;
    if (held_ >= 32) {
      put_bytes(4);
      held_ -= 32;
    }
  }
  void flush() {
    put_bytes((held_ + 7) / 8);
    held_ = 0;
  }

 private:
  void put_bytes(int count) {
    for (int i = 0; i < count; ++i) {
      *to_++ = static_cast<uint8_t>(pending_);
      pending_ >>= 8;
    }
  }

  uint8_t* to_;
  uint64_t pending_ = 0;
  int held_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const uint8_t* from) : from_(from) {}
  uint32_t get(int bits) {
    for (; held_ < bits; held_ += 8) pending_ |= static_cast<uint64_t>(*from_++) << held_;
    const uint32_t field = static_cast<uint32_t>(pending_ & (0xffffffffu >> (32 - bits)));
    pending_ >>= bits;
    held_ -= bits;
    return field;
  }
  // As many fields as there are codes, four bytes at a time while all four belong to them.
  void get_all(uint32_t* fields, int64_t count, int bits) {
    const uint32_t mask = 0xffffffffu >> (32 - bits);
    int64_t i = 0;
    for (int64_t bytes = count * bits / 8; i < count && bytes >= 4; ++i) {
      if (held_ < bits) {
        uint64_t next = 0;
        for (int k = 0; k < 4; ++k) next |= static_cast<uint64_t>(*from_++) << (8 * k);
        pending_ |= next << held_;
        held_ += 32;
        bytes -= 4;
      }
      fields[i] = static_cast<uint32_t>(pending_) & mask;
      pending_ >>= bits;
      held_ -= bits;
    }
    for (; i < count; ++i) fields[i] = get(bits);
  }

 private:
  const uint8_t* from_;
  uint64_t pending_ = 0;
  int held_ = 0;
};

// Eight codes of fewer than 8 bits, one to a byte, side by side; and back. Halves, quarters and
// eighths of the word close up.
uint64_t close_up(uint64_t bytes, int bits) {
  const int gap = 8 - bits;
  uint64_t x = bytes;
  x = (x & 0x00ff00ff00ff00ffu) | (x & 0xff00ff00ff00ff00u) >> gap;
  x = (x & 0x0000ffff0000ffffu) | (x & 0xffff0000ffff0000u) >> (2 * gap);
  return (x & 0x00000000ffffffffu) | (x & 0xffffffff00000000u) >> (4 * gap);
}

uint64_t spread_out(uint64_t codes, int bits) {
  const int gap = 8 - bits;
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  uint64_t x = (codes & four) | (codes & ~four) << (4 * gap);
  const uint64_t two = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001u;
  x = (x & two) | (x & two << (2 * bits)) << (2 * gap);
  const uint64_t one = ((uint64_t{1} << bits) - 1) * 0x0001000100010001u;
  return (x & one) | (x & one << bits) << gap;
}

// `count` codes of `bits` bits from a byte boundary on.
void write_codes(const uint32_t* __restrict codes, int64_t count, int bits,
                 uint8_t* __restrict to) {
  int64_t i = 0;
  if (bits < 8) {
    for (; i + 8 <= count; i += 8) {
      uint64_t bytes = 0;
      for (int k = 0; k < 8; ++k) bytes |= static_cast<uint64_t>(codes[i + k]) << (8 * k);
      const uint64_t closed = close_up(bytes, bits);
      for (int k = 0; k < bits; ++k) *to++ = static_cast<uint8_t>(closed >> (8 * k));
    }
  } else if (bits == 8) {
    for (; i < count; ++i) to[i] = static_cast<uint8_t>(codes[i]);
    return;
  } else if (bits == 16) {
    for (; i < count; ++i) {
      const auto code = static_cast<uint16_t>(codes[i]);
      std::memcpy(to + 2 * i, &code, sizeof code);
    }
    return;
  }
  BitWriter writer(to);
  for (; i < count; ++i) writer.put(codes[i], bits);
  writer.flush();
}

void read_codes(const uint8_t* __restrict from, int64_t count, int bits,
                uint32_t* __restrict codes) {
  int64_t i = 0;
  if (bits < 8) {
    for (; i + 8 <= count; i += 8) {
      uint64_t closed = 0;
      for (int k = 0; k < bits; ++k) closed |= static_cast<uint64_t>(*from++) << (8 * k);
      const uint64_t bytes = spread_out(closed, bits);
      for (int k = 0; k < 8; ++k) codes[i + k] = static_cast<uint8_t>(bytes >> (8 * k));
    }
  } else if (bits == 8) {
    for (; i < count; ++i) codes[i] = from[i];
    return;
  } else if (bits == 16) {
    for (; i < count; ++i) {
      uint16_t code;
      std::memcpy(&code, from + 2 * i, sizeof code);
      codes[i] = code;
    }
    return;
  }
  BitReader(from).get_all(codes + i, count - i, bits);
}

}  // namespace
}  // namespace lpk
