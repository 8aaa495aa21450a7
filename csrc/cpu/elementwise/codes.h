// Dense streams of codes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "block_kernels.h"
#include "common/codes.h"

namespace lpk {
namespace {

// Elements that a thread takes at a time, a whole number of bytes in any width. Fewer than twice as
// many are done sooner than another thread is woken.
constexpr int64_t kGrain = 65536;
// Elements of a piece, which fit the first cache.
constexpr int64_t kPiece = 2048;
// Vectors and groups of codes reach so far beyond the end of a piece's arrays.
constexpr int64_t kSlack = 64;

// Appends and reads fields of up to 32 bits, from a byte boundary on.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}
  void put(uint32_t field, int bits) {
    pending_ |= static_cast<uint64_t>(field) << pending_bits_;
    pending_bits_ += bits;
    if (pending_bits_ >= 32) {
      put_bytes(4);
      pending_bits_ -= 32;
    }
  }
  void flush() {
    put_bytes((pending_bits_ + 7) / 8);
    pending_bits_ = 0;
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
  int pending_bits_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const uint8_t* from) : from_(from) {}
  uint32_t get(int bits) {
    for (; pending_bits_ < bits; pending_bits_ += 8)
      pending_ |= static_cast<uint64_t>(*from_++) << pending_bits_;
    const uint32_t field = static_cast<uint32_t>(pending_ & (0xffffffffu >> (32 - bits)));
    pending_ >>= bits;
    pending_bits_ -= bits;
    return field;
  }
  // Reads `count` fields, four bytes at a time while all four belong to the codes.
  void get_all(uint32_t* fields, int64_t count, int bits) {
    const uint32_t mask = 0xffffffffu >> (32 - bits);
    int64_t i = 0;
    for (int64_t bytes = count * bits / 8; i < count && bytes >= 4; ++i) {
      if (pending_bits_ < bits) {
        uint64_t next = 0;
        for (int k = 0; k < 4; ++k) next |= static_cast<uint64_t>(*from_++) << (8 * k);
        pending_ |= next << pending_bits_;
        pending_bits_ += 32;
        bytes -= 4;
      }
      fields[i] = static_cast<uint32_t>(pending_) & mask;
      pending_ >>= bits;
      pending_bits_ -= bits;
    }
    for (; i < count; ++i) fields[i] = get(bits);
  }

 private:
  const uint8_t* from_;
  uint64_t pending_ = 0;
  int pending_bits_ = 0;
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
inline void write_codes(const uint32_t* __restrict codes, int64_t count, int bits,
                        uint8_t* __restrict to) {
  int64_t i = 0;
  if (bits == 4) {
    for (; i + 2 <= count; i += 2) to[i / 2] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
    to += i / 2;
  } else if (bits < 8) {
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
      if ((count - i) * bits >= 64) {
        std::memcpy(&closed, from, sizeof closed);
      } else {
        std::memcpy(&closed, from, static_cast<size_t>(bits));
      }
      from += bits;
      const uint64_t bytes = spread_out(closed & ~uint64_t{0} >> (64 - 8 * bits), bits);
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

// Writes codes of whole vectors first, from a byte boundary on; they fill whole bytes.
inline void write_span(const Kernels& kernel, const uint32_t* codes, int64_t count, int bits,
                       uint8_t* to) {
  const int64_t whole = bits == 8 || bits == 16 ? count / kCodeLanes * kCodeLanes : 0;
  if (whole > 0) kernel.narrow_codes(codes, whole, bits, to);
  write_codes(codes + whole, count - whole, bits, to + whole / 8 * bits);
}

// The place of the first value without a code, in any order of the threads that find some.
class FirstWithoutCode {
 public:
  void add(int64_t place) {
    int64_t first = place_.load();
    while (place < first && !place_.compare_exchange_weak(first, place)) {
    }
  }
  // -1: there is none.
  int64_t get() const { return place_.load() == INT64_MAX ? -1 : place_.load(); }

 private:
  std::atomic<int64_t> place_{INT64_MAX};
};

// The values of codes of one format.
class Decoder {
 public:
  explicit Decoder(const int64_t* format)
      : format_(format), codec_(format), kernel_(kernels()), by_(*kernels().families.blocks) {
    for (uint32_t code = 0; code < kFours && codec_.bits() == 4; ++code)
      fours_[code] = canonical_float(codec_.decode(code));
  }

  int bits() const { return codec_.bits(); }

  // `count` codes from bit number `bit` of a stream on.
  void stream(const uint8_t* from, int64_t bit, int64_t count, float* x) const {
    uint32_t codes[kSpan + kCodeLanes];
    for (int64_t i = 0; i < count; i += kSpan, bit += kSpan * bits())
      span(from + bit / 8, static_cast<int>(bit % 8), std::min(kSpan, count - i), codes, x + i);
  }

  // `count` codes, behind which there is room for kCodeLanes more.
  void words(uint32_t* codes, int64_t count, float* x) const {
    const int64_t whole = count / kCodeLanes * kCodeLanes;
    std::fill_n(codes + count, kCodeLanes, 0u);
    if (kernel_.decode({format_, whole}, codes, x)) {
      float last[kCodeLanes];
      if (count > whole) kernel_.decode({format_, kCodeLanes}, codes + whole, last);
      std::copy(last, last + (count - whole), x + whole);
    } else {
      for (int64_t i = 0; i < count; ++i) x[i] = canonical_float(codec_.decode(codes[i]));
    }
  }

 private:
  static constexpr int64_t kSpan = 1024;
  static constexpr uint32_t kFours = 16;

  void span(const uint8_t* from, int skipped, int64_t count, uint32_t* codes, float* x) const {
    if (skipped != 0) {
      BitReader reader(from);
      reader.get(skipped);
      reader.get_all(codes, count, bits());
    } else if (bits() == 4) {
      const int64_t whole = count / kCodeLanes * kCodeLanes;
      by_.decode_fours(fours_, from, whole, x);
      for (int64_t i = whole; i < count; ++i) x[i] = fours_[from[i / 2] >> i % 2 * 4 & 15];
      return;
    } else {
      read_codes(from, count, bits(), codes);
    }
    words(codes, count, x);
  }

  const int64_t* format_;
  const Codec codec_;
  const Kernels& kernel_;
  const BlockKernels& by_;
  float fours_[kFours];
};

}  // namespace
}  // namespace lpk
