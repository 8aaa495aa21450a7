// Emulated sums of products on a CUDA device. No CUDA type crosses this header.
//
// Every product is one batch of matrix products between packed operands. Sums of entries say where
// element (lane, step) of an operand's matrix g lies, and where output (row, col) of matrix g lies.
// So one family of kernels serves matrix products and convolutions: a convolution is a matter of
// tables.
#pragma once

#include <cstdint>

#include "common/accumulate.h"
#include "cuda/elementwise/quantize.h"
#include "tier.h"

namespace lpk::cuda {

// Offsets in elements: a table on the device, or multiples of a step.
struct Line {
  const int64_t* at;
  int64_t step;
  LPK_HD int64_t operator[](int64_t i) const { return at != nullptr ? at[i] : i * step; }
};

// What packing found out about all values of an operand except zeros and absent taps. If all bits
// are zero, no value was seen.
struct Facts {
  uint32_t mantissas;   // OR of the 23 bits
  uint32_t highest;     // largest biased exponent
  uint32_t lowest;      // 255 less the smallest biased exponent
  uint32_t last_place;  // 512 less the smallest biased exponent of a last bit that is set
};

// The float NaN of a tap that falls outside and adds nothing. No value has these bits: packing
// writes the canonical NaN for all other NaNs, whatever their bits. Arithmetic does not make these
// bits either: a GPU gives 0x7fffffff, and x86 gives 0xffc00000.
constexpr uint32_t kAbsent = 0x7fc0deadu;
static_assert(kAbsent != kCanonicalNan32, "a NaN among the values is no absent tap");

// Element (lane, step) of matrix g is values[batch[g] + lanes[lane] + steps[step]]. Lanes that lie
// side by side (no table, step 1) begin at multiples of kPad, and zeros follow the last lane up to
// the next such multiple.
constexpr int64_t kPad = 128;
struct Operand {
  const float* values;
  Line batch, lanes, steps;
  const Facts* facts;
  bool absent;  // some elements are kAbsent
};

// Sums of K products for the M x N outputs of each of `count` matrices. Output (i, j) of matrix g
// is out[batch[g] + rows[i] + cols[j]]. Its draws have row row_batch[g] + row_keys[i] and column
// col_batch[g] + col_keys[j]; this column is also the index of the output's bias.
struct Sums {
  Operand left, right;
  float* out;
  Line batch, rows, cols;
  Line row_batch, row_keys, col_batch, col_keys;
  const float* bias;         // or null
  const int64_t* positions;  // of each step in the contract's order; null: its index
  const int64_t* starts;     // first step of every chunk and K; null: chunk c begins at c * chunk
  int64_t chunks;            // with starts
  const float* initial;      // where the outermost sums start, laid out as out; null: +0
  int64_t count, m, n, k;
};

// A quantizer of a float or fixed format that draws nothing, or no quantizer.
struct FusedRule {
  Format fmt;
  Rounding rounding;
  bool rounds;
};

// The rule of eight format integers and a rounding on the host, or of null.
inline FusedRule fused_rule(const int64_t* ints) {
  if (ints == nullptr) return {};
  return {number_format(ints), static_cast<Rounding>(ints[kFormatInts]), true};
}

// The most blocks that make certified tiles of chunks one after another: as many as have room for
// their outer sums, 128 x 128 each, in 256 MiB.
constexpr int64_t kMostBlocks = (int64_t{1} << 26) / (128 * 128);

// The most products of a sum: steps are counted in 32 bits, up to a stage beyond the end.
constexpr int64_t kMostSteps = (int64_t{1} << 31) - 16;

// How sums are made: what every kernel of a product gets.
struct Job {
  Sums sums;
  Accumulator acc;
  FusedRule result;
  bool fast_doubles;  // the processor adds doubles at half the rate of floats
  // These are null where only the exact kernel runs: the plan, which names the kernel to take;
  // flags, which say which certified tiles must be done again; and the outer
  // sums of chunks. plans: whether this is the first kernel of the product, which makes the plan.
  Plan* plan;
  bool plans;
  uint8_t* redo;
  float* outer;
  // How many certified tiles there are.
  int64_t tiles;
  // The steps in a chunk and the number of chunks, which begin_chunks fills in. If acc.chunk is 0,
  // one chunk has all steps.
  int32_t span, chunks;
  uint64_t seed;               // of the call
  const int64_t* device_seed;  // replaces it where not null
  uint64_t role;

  LPK_HD uint64_t use_seed() const {
    return derive_seed(device_seed != nullptr ? static_cast<uint64_t>(*device_seed) : seed, role);
  }
};

inline int64_t chunks_of(const Sums& s, int64_t chunk) {
  if (chunk == 0) return 1;
  return s.starts != nullptr ? s.chunks : (s.k + chunk - 1) / chunk;
}

inline void begin_chunks(Job* job) {
  const Sums& s = job->sums;
  const int64_t chunk = job->acc.chunk;
  job->span = static_cast<int32_t>(chunk == 0 || chunk > s.k ? s.k : chunk);
  job->chunks = static_cast<int32_t>(chunks_of(s, chunk));
}

// A matrix of a batch, packed for products. Element (lane, step) of matrix g is found at from[g *
// batch + lane * lane_stride + step * step_stride]. After rounding it goes to to[(g * steps + step)
// * padded + lane], where `padded` is `lanes` rounded up to a multiple of kPad. NaNs become
// 0x7fc00000. `facts` is widened, not begun.
struct PackArgs {
  const float* from;
  int64_t count, lanes, steps;
  int64_t batch, lane_stride, step_stride;
  float* to;
  int64_t padded;
  Facts* facts;
  const int64_t* quantizer;  // of fused_rule
};

void pack_operand(const PackArgs& args, void* stream);

// An image copied into a frame, for products that read it through tables. Element (n, c, z, y, x)
// of the image is found at from[n * steps[0] + c * steps[1] + z * steps[2] + y * steps[3] + x *
// steps[4]]. After rounding it goes to position (z, y, x) + before of frame n. Positions of the
// frame that the image does not have become kAbsent. `before` is negative where the frame leaves
// out the first positions of the image.
//
// A line of the frame has `fold` runs of `run` columns: column p lies at p % fold * run + p / fold.
// Channels lie in front of positions, or last. `facts` is widened, not begun.
struct FrameArgs {
  const float* from;
  int64_t images, channels;
  int64_t size[3], before[3];
  int64_t steps[5];
  float* to;
  int64_t height[2];  // of the frame: its z and y
  int64_t fold, run;
  bool channels_last;
  Facts* facts;
  const int64_t* quantizer;  // of fused_rule
};

void frame(const FrameArgs& args, void* stream);

// The bytes that a product needs on the device beside operands and outputs; their contents are
// arbitrary. Of `sums` this reads count, m and n.
int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator);

// Starts the kernels of a product on `stream`. Throws std::invalid_argument for arguments that the
// kernels cannot take, and std::runtime_error for a CUDA error.
struct MultiplyArgs {
  Sums sums;
  const int64_t* accumulator;
  const int64_t* result;  // of fused_rule
  Draws draws;
  void* scratch;
};
void multiply(const MultiplyArgs& args, void* stream);

// total[r][c] <- round(total[r][c] + addend[r * row_stride + c * col_stride]) in the accumulator's
// outer format, where `total` is contiguous. The draw of element (0, 0) has the key (row, col, k).
struct AddArgs {
  float* total;
  const float* addend;
  int64_t rows, cols, row_stride, col_stride;
  Draws draws;
  uint64_t row, col, k;
};
void add(const AddArgs& args, const int64_t* accumulator, void* stream);

}  // namespace lpk::cuda
