#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "codes.h"
#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"

namespace lpk {
namespace {

// Groups of 8 codes begin on a byte, whatever their width: pieces of work start at multiples of
// this many values.
constexpr int64_t kGrain = 65536;
// So many codes are made at a time. They are a whole number of bytes in any width, and fit the
// first cache.
constexpr int64_t kSpan = 1024;
// Fewer values are packed sooner than another thread is woken.
constexpr int64_t kWorthThreads = 2 * kGrain;

int64_t block_count(const PackArgs& args) {
  const int64_t size = args.format[1];
  return args.outer * ((args.length + size - 1) / size) * args.inner;
}

// Walks the blocks of a block format in row-major order of (outer, block, inner).
template <class Body>
void for_each_block(const PackArgs& args, const Body& body) {
  const int64_t size = args.format[1];
  for (int64_t outer = 0; outer < args.outer; ++outer) {
    for (int64_t start = 0; start < args.length; start += size) {
      for (int64_t inner = 0; inner < args.inner; ++inner) {
        body((outer * args.length + start) * args.inner + inner,
             std::min(size, args.length - start));
      }
    }
  }
}

// The scale byte follows the values: the same floor(log2 max) as in quantize, so packing a
// quantised tensor is exact.
uint32_t block_scale(const PackArgs& args, const float* x, int64_t first, int64_t count,
                     const BlockElement& element) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double a = std::fabs(static_cast<double>(x[first + i * args.inner]));
    if (!(a < HUGE_VAL)) return kNanScale;
    largest = std::max(largest, a);
  }
  return static_cast<uint32_t>(element.exponent_for(largest) + kScaleBias);
}

// A block with inf or NaN has a code only if it is NaN throughout. Returns the first inf or NaN of
// a block without a code, -1 if it has one.
int64_t first_special(const PackArgs& args, const float* x, int64_t first, int64_t count) {
  int64_t special = -1;
  bool all_nan = true;
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[first + i * args.inner];
    all_nan &= value != value;
    if (special < 0 && !(std::fabs(value) < HUGE_VALF)) special = first + i * args.inner;
  }
  return all_nan ? -1 : special;
}

int64_t pack_blocks(const PackArgs& args, const float* x, uint8_t* codes) {
  const Codec codec(args.format + kFormatInts);
  const BlockElement element(args.format + kFormatInts);
  BitWriter writer(codes);
  int64_t refused = -1;
  for_each_block(args, [&](int64_t first, int64_t count) {
    if (refused >= 0) return;
    const uint32_t scale = block_scale(args, x, first, count, element);
    writer.put(scale, 8);
    if (scale == kNanScale) refused = first_special(args, x, first, count);
    const double down = power_of_two(kScaleBias - static_cast<int>(scale));
    for (int64_t i = 0; i < count && refused < 0; ++i) {
      const int64_t index = first + i * args.inner;
      const uint32_t code = scale == kNanScale ? 0 : codec.encode(x[index] * down);
      if (code == kNoCode) refused = index;
      writer.put(code, codec.bits());
    }
  });
  writer.flush();
  return refused;
}

void unpack_blocks(const PackArgs& args, const uint8_t* codes, float* x) {
  const Codec codec(args.format + kFormatInts);
  BitReader reader(codes);
  for_each_block(args, [&](int64_t first, int64_t count) {
    const uint32_t scale = reader.get(8);
    const double up = scale == kNanScale ? static_cast<double>(NAN)
                                         : power_of_two(static_cast<int>(scale) - kScaleBias);
    for (int64_t i = 0; i < count; ++i)
      x[first + i * args.inner] = canonical_float(codec.decode(reader.get(codec.bits())) * up);
  });
}

bool is_block(const PackArgs& args) { return args.format[0] == static_cast<int64_t>(Kind::kBlock); }

}  // namespace

int64_t packed_bytes(const PackArgs& args) {
  const Codec codec(is_block(args) ? args.format + kFormatInts : args.format);
  const int64_t bits = args.count * codec.bits() + (is_block(args) ? 8 * block_count(args) : 0);
  return (bits + 7) / 8;
}

namespace {

// Codes of a span of values, which `codes` has room for rounded up to kCodeLanes; whether every
// value has one.
bool encode_span(const PackArgs& args, const Codec& codec, const Kernels& kernel, const float* x,
                 int64_t count, uint32_t* codes) {
  const int64_t padded = (count + kCodeLanes - 1) / kCodeLanes * kCodeLanes;
  float values[kSpan];
  if (padded > count) {
    std::copy(x, x + count, values);
    std::fill(values + count, values + padded, 0.0f);
    x = values;
  }
  const Coding found = kernel.encode({args.format, padded}, x, codes);
  if (found != Coding::kNotTaken) return found == Coding::kAll;
  // A 32-bit code of all ones is float32's own NaN with its sign, which encode never returns.
  bool missing = false;
  for (int64_t i = 0; i < count; ++i) missing |= (codes[i] = codec.encode(x[i])) == kNoCode;
  return !missing;
}

void write_span(const Kernels& kernel, const uint32_t* codes, int64_t count, int bits,
                uint8_t* to) {
  const int64_t whole = bits == 8 || bits == 16 ? count / kCodeLanes * kCodeLanes : 0;
  if (whole > 0) kernel.narrow_codes(codes, whole, bits, to);
  write_codes(codes + whole, count - whole, bits, to + whole / 8 * bits);
}

void decode_span(const PackArgs& args, const Codec& codec, const Kernels& kernel,
                 const uint32_t* codes, int64_t count, float* x) {
  const int64_t padded = (count + kCodeLanes - 1) / kCodeLanes * kCodeLanes;
  float values[kSpan];
  float* to = padded > count ? values : x;
  if (kernel.decode({args.format, padded}, codes, to)) {
    if (to == values) std::copy(values, values + count, x);
    return;
  }
  for (int64_t i = 0; i < count; ++i) x[i] = canonical_float(codec.decode(codes[i]));
}

int threads_for(const PackArgs& args) { return args.count < kWorthThreads ? 1 : args.threads; }

}  // namespace

int64_t pack(const PackArgs& args, const float* x, uint8_t* codes) {
  if (is_block(args)) {
    const FloatEnvironment environment;
    return pack_blocks(args, x, codes);
  }
  const Codec codec(args.format);
  const Kernels& kernel = kernels();
  std::atomic<int64_t> refused{INT64_MAX};
  parallel_ranges(args.count, kGrain, threads_for(args), [&](int64_t begin, int64_t end) {
    uint32_t span[kSpan];
    for (int64_t at = begin; at < end; at += kSpan) {
      const int64_t count = std::min(kSpan, end - at);
      if (!encode_span(args, codec, kernel, x + at, count, span)) {
        const int64_t i = at + (std::find(span, span + count, kNoCode) - span);
        int64_t first = refused.load();
        while (i < first && !refused.compare_exchange_weak(first, i)) {
        }
        return;
      }
      write_span(kernel, span, count, codec.bits(), codes + at / 8 * codec.bits());
    }
  });
  return refused.load() == INT64_MAX ? -1 : refused.load();
}

void unpack(const PackArgs& args, const uint8_t* codes, float* x) {
  if (is_block(args)) {
    const FloatEnvironment environment;
    unpack_blocks(args, codes, x);
    return;
  }
  const Codec codec(args.format);
  const Kernels& kernel = kernels();
  parallel_ranges(args.count, kGrain, threads_for(args), [&](int64_t begin, int64_t end) {
    uint32_t span[kSpan];
    for (int64_t at = begin; at < end; at += kSpan) {
      const int64_t count = std::min(kSpan, end - at);
      read_codes(codes + at / 8 * codec.bits(), count, codec.bits(), span);
      std::fill(span + count, span + (count + kCodeLanes - 1) / kCodeLanes * kCodeLanes, 0u);
      decode_span(args, codec, kernel, span, count, x + at);
    }
  });
}

}  // namespace lpk
