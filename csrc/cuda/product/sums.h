// Emulated sums of products on a CUDA device. No CUDA type crosses this header.
//
// Every product is one batch of matrix products between packed operands: element (lane, step) of an
// operand's matrix g, and output (row, col) of matrix g, lie where sums of entries say. So one
// family of kernels serves matrix products and convolutions; a convolution is a matter of tables.
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

// What packing found out about all values of an operand; zeros are left out, and so are absent
// taps. All bits zero: nothing was seen.
struct Facts {
  uint32_t mantissas;   // OR of the 23 bits
  uint32_t highest;     // largest biased exponent
  uint32_t lowest;      // 255 less the smallest biased exponent
  uint32_t last_place;  // 512 less the smallest biased exponent of a last bit that is set
};

// The float NaN of a tap that falls outside and adds nothing. It is no value's: packing writes the
// canonical NaN for all others, whatever their bits. Nor is it what arithmetic makes: a GPU gives
// 0x7fffffff, x86 0xffc00000.
constexpr uint32_t kAbsent = 0x7fc0deadu;
static_assert(kAbsent != kCanonicalNan32, "a NaN among the values is no absent tap");

// Element (lane, step) of matrix g is values[batch[g] + lanes[lane] + steps[step]]. Lanes that lie
// side by side (no table, step 1) begin at multiples of kPad and have zeros behind the last one up
// to such a multiple.
constexpr int64_t kPad = 128;
struct Operand {
  const float* values;
  Line batch, lanes, steps;
  const Facts* facts;
  bool absent;   // some elements are kAbsent
  int64_t size;  // values in all
};

// Sums of K products for M x N outputs of each of `count` matrices; output (i, j) of matrix g is
// out[batch[g] + rows[i] + cols[j]]. Its draws have row row_batch[g] + row_keys[i] and column
// col_batch[g] + col_keys[j], which is also the index of its bias.
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

// A quantizer of a float or fixed format that draws nothing, or none.
struct FusedRule {
  Format fmt;
  Rounding rounding;
  bool given;
};

// From eight format integers and a rounding on the host, or null.
inline FusedRule fused_rule(const int64_t* ints) {
  if (ints == nullptr) return {};
  return {number_format(ints), static_cast<Rounding>(ints[kFormatInts]), true};
}

// How a product is shared out: each tile of rows x cols outputs is made `splits` times over, each
// time of other chunks, `chunks` of them, and that in `passes` one after another. One split of one
// pass: a block makes all of a tile.
struct Cut {
  int32_t rows, cols;
  int64_t tiles;
  int32_t splits, passes, chunks;
};

// The most sums of chunks that wait in memory, as floats: 256 MiB.
constexpr int64_t kMostParts = int64_t{1} << 26;
// The most blocks of certified tiles, which make one after another: as many as have outer sums in
// that memory, 128 x 128 each.
constexpr int64_t kMostBlocks = kMostParts / (128 * 128);

// The most products of a sum: steps are counted in 32 bits, and a stage beyond the end.
constexpr int64_t kMostSteps = (int64_t{1} << 31) - 16;

// How sums are made: what every kernel of a product gets.
struct Job {
  Sums sums;
  Accumulator acc;
  FusedRule result;
  bool fast_doubles;   // the processor adds doubles at half the rate of floats
  int32_t processors;  // of the device
  bool whole;          // certified kernels make a sum without chunks as one chunk
  int64_t most_parts;  // at most so many sums of chunks wait
  // Null where only the exact kernel runs: the kernel to take, for which pieces of certified tiles
  // these must be done again, and the outer sums of chunks. plans: this is the first kernel of the
  // product, which makes the plan.
  Plan* plan;
  bool plans;
  uint8_t* redo;
  float* outer;
  // Where sums are split, for each of the `counted` tiles of the exact kernel: how many blocks have
  // added parts of it.
  uint32_t* arrived;
  int64_t counted;
  // How the kernels of tiles of several shapes share the product out, and how those of square tiles
  // do; of the kernel that gets this job one of both. Where it splits the sums: the sums of chunks
  // of a pass, null where it does not, and the number of the pass.
  Cut shaped, squares, cut;
  float* parts;
  int32_t pass;
  // Of native chunks: the operands in half precision or bfloat16, absent taps as zeros, element by
  // element where `values` has them.
  uint16_t *left_halves, *right_halves;
  // Of trees: nodes that wait, and at how many levels.
  float* waiting;
  int32_t levels;
  // Steps in a chunk and chunks: filled in by begin_chunks; one chunk of all steps if acc.chunk is
  // 0.
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

// A matrix of a batch, packed for products: element (lane, step) of matrix g, found at
// from[g * batch + lane * lane_stride + step * step_stride], goes to
// to[(g * steps + step) * padded + lane] after rounding; `padded` is `lanes` up to a multiple of
// kPad. NaNs become 0x7fc00000. `facts` is widened, not begun.
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

// An image copied into a frame for products that read it through tables: element (n, c, z, y, x) of
// the image, found at from[n * steps[0] + c * steps[1] + z * steps[2] + y * steps[3] + x *
// steps[4]], goes to position (z, y, x) + before of frame n, rounded. Positions of the frame that
// the image has not become kAbsent; `before` is negative where the frame leaves out the first ones.
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

// What a product needs beside operands and outputs: bytes on the device, contents arbitrary. Reads
// the sizes of `sums` and of its operands, its chunks, and whether it has positions.
int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator);

// Starts the kernels of a product on `stream`. Throws std::invalid_argument for arguments that they
// cannot take, std::runtime_error for a CUDA error.
struct MultiplyArgs {
  Sums sums;
  const int64_t* accumulator;
  const int64_t* result;  // of fused_rule
  Draws draws;
  void* scratch;
};
void multiply(const MultiplyArgs& args, void* stream);

// total[r][c], contiguous, <- round(total[r][c] + addend[r * row_stride + c * col_stride]) in the
// accumulator's outer format; the draw of element (0, 0) has this key.
struct AddArgs {
  float* total;
  const float* addend;
  int64_t rows, cols, row_stride, col_stride;
  Draws draws;
  uint64_t row, col, k;
};
void add(const AddArgs& args, const int64_t* accumulator, void* stream);

}  // namespace lpk::cuda
