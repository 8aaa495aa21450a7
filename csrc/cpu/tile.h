// What the drivers (gemm.cpp, conv.cpp, quantize.cpp) hand to the kernels of one instruction set:
// plain data, no templates.
#pragma once

#include <cstdint>
#include <vector>

#include "element_types.h"

namespace lpk {

// Lanes of a packed panel of B; every kernel's vector width divides it.
constexpr int kPanel = 16;

// What an operand of one tile can hold, from its finite float32 normals and zeros; `plain` is false
// if there is anything else in it.
struct OperandRange {
  bool plain;
  bool zero;    // nothing but zeros, which are multiples of anything
  int width;    // significant bits of every element
  int lowest;   // every element is a multiple of 2^lowest
  int highest;  // and smaller than 2^highest
};

// Two panels of one k, in half precision.
constexpr int kHalfLanes = 32;
struct alignas(64) HalfColumn {
  uint16_t lane[kHalfLanes];
};

// What the tiles of one packed block of B have found out about it; cleared when B is packed.
struct PackedFacts {
  bool ranged = false;
  bool halved = false;
  OperandRange range;
  std::vector<HalfColumn> halves;  // pairs of panels of depth columns, if `halved`
  void clear() { ranged = halved = false; }
};

// acc[r][l] += sum over k of a[r][k] b[k][l], step by step in the order of k, for one block of k.
//
// The state lives in `inner` (the running sum, of the current chunk if there are chunks) and
// `outer` (the sum of chunks), both rows x lanes, and is carried from one block of k to the next.
// Every value in it is one of a format, so float32.
struct Tile {
  int64_t rows;
  int64_t lanes;  // a multiple of kPanel; surplus lanes are computed and never stored
  int64_t depth;
  int64_t k0;  // position of the block's first product in the whole sum

  const float* a;         // rows x depth
  const uint8_t* absent;  // rows x depth, 1 where a tap adds nothing; null if all are present
  const float* b;         // lanes / kPanel panels of depth x kPanel
  PackedFacts* b_facts;
  float* inner;
  float* outer;
  int64_t stride;  // between rows of the state

  const int64_t* accumulator;  // the integers of accumulate.h
  int64_t length;              // of the whole sum: its last product closes a chunk
  uint64_t seed;
  const uint64_t* row_id;  // of each row, and of each lane, in the key of a draw
  const uint64_t* lane_id;
  bool lanes_are_rows;  // the lanes carry the key's row, the rows its column
};

// sum[r][l] <- round(sum[r][l] + addend[r][l]) in the accumulator's outer format, drawn at position
// k of `site`.
struct AddBlock {
  float* sum;  // rows `stride` apart
  int64_t stride;
  int64_t rows;
  int64_t lanes;
  const float* addend;
  int64_t addend_row, addend_lane;  // strides; that of the lanes is 1, or 0: one value for a row

  const int64_t* accumulator;
  uint64_t seed;
  uint32_t site;
  uint64_t k;
  const uint64_t* row_id;
  const uint64_t* lane_id;  // of whole panels
  bool lanes_are_rows;
};

// y[i] = round(x[i]) for consecutive elements of a tensor, the first at row-major position `index`.
struct RoundBlock {
  const double* x;
  double* y;
  int64_t count;
  const int64_t* format;
  int64_t rounding;
  int64_t random_bits;
  int64_t rng;
  uint64_t seed;
  uint32_t site;
  uint64_t index;
};

// The same on the elements themselves, float32, float16 or bfloat16.
struct ElementBlock {
  const void* x;
  void* y;
  ElementType x_type;
  ElementType y_type;
  int64_t count;  // at most 2^16
  const int64_t* format;
  int64_t rounding;
  int64_t random_bits;
  int64_t rng;
  uint64_t seed;
  uint32_t site;
  uint64_t index;  // a multiple of 2^16
  bool streamed;   // y will not be read soon: past the caches
};

// y[i] = x[i] coded on the line of its slice and back: lo + step times a code. The parameters are
// one for all elements, or one for each.
struct AffineSpan {
  RoundBlock block;  // its format is one of integers
  bool each;
  const double* lo;
  const double* hi;  // what code `top` becomes
  const double* step;
  const double* top;
  double first, last;  // codes
};

// Codes of a float format, a word each, and the values they mean; `count` is a multiple of
// kCodeLanes.
constexpr int64_t kCodeLanes = 16;
constexpr uint32_t kNoCode = 0xffffffffu;
struct CodeBlock {
  const int64_t* format;
  int64_t count;
};

// How many products each tier has accumulated since the last call, for the plan that users see.
enum class Tier { kNative, kCertified, kFloat, kDouble, kCount };
void count_products(Tier tier, int64_t products);
// Reads and clears: the counts of every tier, in the order of the enumeration.
void take_counts(int64_t* counts);

struct Kernels {
  const char* isa;
  void (*accumulate)(const Tile&);
  void (*add)(const AddBlock&);
  // to[c * to_stride + r] = from[r * from_stride + c]
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                    int64_t to_stride);
  void (*round)(const RoundBlock&);
  // These three: false, and nothing done, for a format or a type that they do not take. A value
  // without a code has kNoCode.
  bool (*round_elements)(const ElementBlock&);
  bool (*encode)(const CodeBlock&, const float* x, uint32_t* codes);
  bool (*decode)(const CodeBlock&, const uint32_t* codes, float* x);
  void (*affine)(const AffineSpan&);
  void (*widen)(const float* x, int64_t count, double* to);
  void (*narrow)(const double* x, int64_t count, float* to);
  // lo and hi, one or one for each element, widened to hold the finite values; whether all are.
  bool (*range)(const double* x, int64_t count, bool each, double* lo, double* hi);
};

// The best kernels that this processor runs, or those that LPKERNELS_ISA names; throws on a name it
// cannot run.
const Kernels& kernels();

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Fp16Kernels;

}  // namespace lpk
