// Dense streams of codes.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/codes.h"

namespace lpk {
namespace {

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
  // Reads `count` fields, four bytes at a time while all four belong to the codes.
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
  if (bits == 4) {
    for (; i + 2 <= count; i += 2) {
      codes[i] = from[i / 2] & 15u;
      codes[i + 1] = from[i / 2] >> 4;
    }
    from += i / 2;
  } else if (bits < 8) {
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
