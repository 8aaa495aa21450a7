#include "pack.h"

#include <algorithm>

#include "codes.h"
#include "cpu/drivers/parallel.h"
#include "cpu/drivers/tile.h"
#include "quantize.h"

namespace lpk {
namespace {

// So many codes are made at a time. They are a whole number of bytes in any width, and fit the
// first cache.
constexpr int64_t kSpan = 1024;

bool is_block(const PackArgs& args) { return kind_of(args.format) == Kind::kBlock; }

bool block_by_block(const PackArgs& args) {
  const auto kind = static_cast<ScaleKind>(args.format[InBlock::kScale]);
  return kind == ScaleKind::kE8m0 && args.format[InBlock::kLines] == 0;
}

// Codes of a span of values, rounded first where args say so. `codes` has room for the count
// rounded up to kCodeLanes. The result is whether every value has a code.
bool encode_span(const PackArgs& args, const Codec& codec, const Kernels& kernel, const float* x,
                 int64_t count, uint32_t* codes) {
  const int64_t padded = (count + kCodeLanes - 1) / kCodeLanes * kCodeLanes;
  float values[kSpan];
  if (padded > count || args.quantizer != nullptr) {
    std::copy(x, x + count, values);
    std::fill(values + count, values + padded, 0.0f);
    round_in_place(kernel, args.quantizer, values, count);
    x = values;
  }
  const Coding coding = kernel.encode({args.format, padded}, x, codes);
  if (coding != Coding::kNotTaken) return coding == Coding::kAll;
  // A 32-bit code of all ones is float32's own NaN with its sign, which encode never returns.
  bool missing = false;
  for (int64_t i = 0; i < count; ++i) missing |= (codes[i] = codec.encode(x[i])) == kNoCode;
  return !missing;
}

int threads_for(const PackArgs& args) { return args.count < 2 * kGrain ? 1 : args.threads; }

}  // namespace

int64_t packed_bytes(const PackArgs& args) {
  if (is_block(args)) return packed_block_bytes(args);
  return (args.count * Codec(args.format).bits() + 7) / 8;
}

int64_t pack(const PackArgs& args, const float* x, uint8_t* codes) {
  if (is_block(args)) return pack_blocks(args, x, nullptr, codes);
  const Codec codec(args.format);
  const Kernels& kernel = kernels();
  FirstWithoutCode refused;
  parallel_ranges(args.count, kGrain, threads_for(args), [&](int64_t begin, int64_t end) {
    uint32_t span[kSpan];
    for (int64_t at = begin; at < end; at += kSpan) {
      const int64_t count = std::min(kSpan, end - at);
      if (!encode_span(args, codec, kernel, x + at, count, span))
        return refused.add(at + (std::find(span, span + count, kNoCode) - span));
      write_span(kernel, span, count, codec.bits(), codes + at / 8 * codec.bits());
    }
  });
  return refused.get();
}

void unpack(const PackArgs& args, const uint8_t* codes, float* x) {
  if (is_block(args))
    return block_by_block(args) ? unpack_blocks(args, codes, x) : unpack_apart(args, codes, x);
  const Decoder decoder(args.format);
  parallel_ranges(args.count, kGrain, threads_for(args), [&](int64_t begin, int64_t end) {
    decoder.stream(codes, begin * decoder.bits(), end - begin, x + begin);
  });
}

}  // namespace lpk
