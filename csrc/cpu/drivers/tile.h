// What the drivers (gemm.cpp, conv.cpp, quantize.cpp) hand to the kernels of one instruction set:
// plain data, no templates.
#pragma once

#include <cstdint>
#include <vector>

#include "common/certificate.h"
#include "common/codes.h"
#include "element_types.h"

namespace lpk {

// Lanes of a packed panel of B; every kernel's vector width divides it.
constexpr int kPanel = 16;

// Two panels of one k, in half precision.
constexpr int kHalfLanes = 32;
struct alignas(64) HalfColumn {
  uint16_t lane[kHalfLanes];
};

// Facts that tiles have found out about one packed block of B; they are cleared when B is packed
// again.
struct PackedFacts {
  bool ranged = false;
  bool halved = false;
  OperandRange range;  // of B, or of more
  // If `halved`: B, pairs of panels of depth columns.
  std::vector<HalfColumn> halves;
  void clear() { ranged = halved = false; }
};

// The absent taps of a block. The driver marks them where a kernel that reads marks was chosen,
// because zeros are enough for the others, and marking takes time.
class Marks {
 public:
  // Marks the absent taps, unless they are marked already.
  virtual void mark() = 0;
  // The marks: rows x depth and panels x depth; null where no tap is absent.
  const uint8_t* rows = nullptr;
  const uint16_t* lanes = nullptr;

 protected:
  ~Marks() = default;
};

// The products that a tile adds to its sums: one block of k.
struct TileSteps {
  int64_t depth;
  int64_t k0;      // position of the block's first product in the whole sum
  int64_t length;  // of the whole sum: its last product closes a chunk
  // The position of every product of the block, ascending, and then the position of the next
  // block's first product, or `length`. It is given where some positions are left out because no
  // row has a product there. Null: the positions are k0, k0 + 1 and so on.
  const int64_t* position;

  int64_t position_of(int64_t k) const { return position == nullptr ? k0 + k : position[k]; }
};

// The operands as they were packed.
struct TileOperands {
  const float* a;  // rows x depth
  // In a spread tile there is one panel, and every lane has an A of its own, a[row_at[r] +
  // step_at[k] + l]. `a_count` floats hold all of it, and maybe more. Null: the tile is not spread.
  const int32_t* row_at;
  const int32_t* step_at;
  int64_t a_count;
  const OperandRange* a_range;  // of A, or of more; null: not known
  const float* b;               // lanes / kPanel panels of depth x kPanel
  PackedFacts* b_facts;
  bool exchanged;  // A is the right factor of the products, B the left

  bool spread() const { return row_at != nullptr; }
};

// Where a tap adds nothing: rows x depth, 1 for the whole row; panels x depth, a bit for each lane.
// One of the operands is zero there. Null: no tap is absent, or the tile is not marked.
struct TileTaps {
  const uint8_t* absent;
  const uint16_t* lane_absent;
  Marks* marks;  // of the block, in which the tile's first row and lane are these
  int64_t marks_row, marks_lane;
};

// The state between blocks of k: `inner` (the running sum, of the current chunk if there are
// chunks) and `outer` (the sum of chunks), both rows x lanes. Every value in it is one of a format,
// so float32.
struct TileState {
  float* inner;  // both +0 before the first block, where k0 is 0, unless `started`
  float* outer;
  int64_t stride;  // between rows
  bool started;    // the outermost sums start from values that were given
  // More state, for sums in other orders (orders_kernel.h): planes laid out as inner, and a mask of
  // lanes for each panel of a row of a plane. Zero at the start.
  float* planes;
  uint16_t* node_lanes;
  int64_t plane;  // between planes, in values
  int64_t plane_count;
};

// The keys of random draws.
struct TileDraws {
  uint64_t seed;
  const uint64_t* row_id;  // of each row, and of each lane of whole panels
  const uint64_t* lane_id;
  bool lanes_are_rows;  // the lanes carry the key's row, the rows its column
};

// acc[r][l] += sum over k of a[r][k] b[k][l], step by step in the order of k, for one block of k.
// The state is carried from one block of k to the next.
struct Tile : TileSteps, TileOperands, TileTaps, TileState, TileDraws {
  int64_t rows;
  int64_t lanes;               // a multiple of kPanel; surplus lanes are computed and never stored
  const int64_t* accumulator;  // the integers of accumulate.h

  // The same tile with its absent taps, for a kernel that reads marks.
  Tile marked() const {
    marks->mark();
    Tile t = *this;
    if (marks->rows != nullptr) t.absent = marks->rows + marks_row * depth;
    if (marks->lanes != nullptr) t.lane_absent = marks->lanes + marks_lane / kPanel * depth;
    return t;
  }
  // Whether all sums are +0 so far.
  bool at_zero() const { return k0 == 0 && !started; }
  // Whether a tap is absent in a row, and in which lanes of a panel.
  bool row_absent(int64_t row, int64_t k) const {
    return absent != nullptr && absent[row * depth + k] != 0;
  }
  uint32_t absent_lanes(int64_t lane, int64_t k) const {
    return lane_absent == nullptr ? 0 : lane_absent[lane / kPanel * depth + k];
  }
  int64_t a_floats() const { return spread() ? a_count : rows * depth; }
};

// How a sum meets the scales of its row and its lane: exactly, or where one of them is a float32 in
// the orders of SCALE_ORDERS (lpkernels/arithmetic/_accumulator.py).
enum class ScaleOrder : int32_t { kExact = 0, kProduct = 1, kLeft = 2, kRight = 3 };

// sum[r][l] <- round(sum[r][l] + addend[r][l]) in the accumulator's outer format, drawn at position
// k of `site`.
struct AddBlock : TileDraws {
  float* sum;  // rows `stride` apart
  int64_t stride;
  int64_t rows;
  int64_t lanes;
  const float* addend;
  int64_t addend_row, addend_lane;  // strides; that of the lanes is 1, or 0: one value for a row
  const float* row_scale;           // of every row, and of every lane, that multiply its addend;
  const float* lane_scale;          // null: none
  ScaleOrder scale_order;

  const int64_t* accumulator;
  uint32_t site;
  uint64_t k;
};

// How the elements of a tensor are rounded, and the key of their draws.
struct ElementRounding {
  const int64_t* format;  // 8 integers, 16 or 24 for a block format
  Rounding rounding;
  int random_bits;
  Rng rng;
  uint64_t seed;
  uint32_t site;
};

// y[i] = round(x[i]) for consecutive elements of a tensor, the first at row-major position `index`.
struct RoundBlock : ElementRounding {
  const double* x;
  double* y;
  int64_t count;
  uint64_t index;
};

// The same on the elements themselves, float32, float16 or bfloat16.
struct ElementBlock : ElementRounding {
  const void* x;
  void* y;
  ElementType x_type;
  ElementType y_type;
  int64_t count;   // at most 2^16
  uint64_t index;  // of the first: a block does not cross a multiple of 2^32
  bool streamed;   // y will not be read soon: past the caches
};

// y[i] = x[i] coded on the line of its slice and back: lo + step times a code. The parameters are
// one for all elements, or one for each.
struct AffineSpan {
  RoundBlock block;  // its format is one of integers
  bool by_element;
  const double* lo;
  const double* hi;  // what code `top` becomes
  const double* step;
  const double* top;
  double first, last;  // codes
};

// Codes of a float format, a word each, and the values they mean; `count` is a multiple of
// kCodeLanes.
constexpr int64_t kCodeLanes = 16;
struct CodeBlock {
  const int64_t* format;
  int64_t count;
};
// The outcome for a block of values that were to become codes: its format is not taken, every value
// has a code, or some have kNoCode.
enum class Coding { kNotTaken, kAll, kSome };

// How many products each tier has accumulated since the last call, for the plan that users see.
enum class Tier { kHardware, kCertified, kFloat, kDouble, kCount };
void count_products(Tier tier, int64_t products);
// Reads and clears: the counts of every tier, in the order of the enumeration.
void take_counts(int64_t* counts);

// Sixteen floats from one place to another.
struct PanelCopy {
  int32_t from, to;
};

// Kernels whose headers declare them: cpu/elementwise, cpu/sums.
struct CountKernels;
struct BlockKernels;
struct HadamardKernels;
struct EventBlock;
struct EventCounts;
using EventKernel = EventCounts(const EventBlock&);
struct UpdatePiece;
struct UpdateCounts;
using UpdateKernel = bool(const UpdatePiece&, UpdateCounts*);
struct GroupedRule;
struct GroupedSide;
// sums: of each lane, where they start, and then the results.
using GroupedKernel = void(const GroupedRule&, const GroupedSide& row, const GroupedSide& panel,
                           double* sums);
struct ScaledTile;

struct KernelFamilies {
  const CountKernels* counts;
  const BlockKernels* blocks;
  const HadamardKernels* hadamard;
  EventKernel* events;
  UpdateKernel* update;
  GroupedKernel* grouped;
  // Of products by scale: of any codes, and of integers of eight bits (`has_vnni`); null: none.
  void (*scaled)(const ScaledTile&);
  bool (*scaled_bytes)(const ScaledTile&);
};

struct Kernels {
  const char* isa;
  void (*accumulate)(const Tile&);
  void (*accumulate_ordered)(const Tile&);  // trees, Kahan's sums, aligned blocks
  void (*add)(const AddBlock&);
  // to[c * to_stride + r] = from[r * from_stride + c]
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                    int64_t to_stride);
  void (*copy_panels)(const PanelCopy* copies, int64_t count, const float* from, float* to);
  // Widens `range` to hold `count` more elements; range_of_zeros() holds no element.
  void (*measure)(const float* x, int64_t count, OperandRange* range);
  void (*round)(const RoundBlock&);
  // round_elements and `decode` return false and do nothing for a format or type they do not take.
  bool (*round_elements)(const ElementBlock&);
  // A value without a code has kNoCode.
  Coding (*encode)(const CodeBlock&, const float* x, uint32_t* codes);
  bool (*decode)(const CodeBlock&, const uint32_t* codes, float* x);
  // Codes of 8 or 16 bits without the bits above these; `count` is a multiple of kCodeLanes.
  void (*narrow_codes)(const uint32_t* codes, int64_t count, int bits, uint8_t* to);
  void (*affine)(const AffineSpan&);
  void (*widen)(const float* x, int64_t count, double* to);
  void (*narrow)(const double* x, int64_t count, float* to);
  // Widens lo and hi, one pair or one an element, to the finite values; whether all are finite.
  bool (*range)(const double* x, int64_t count, bool by_element, double* lo, double* hi);
  KernelFamilies families;
};

// The best kernels that this processor runs, or those that LPKERNELS_ISA names; throws on a name it
// cannot run.
const Kernels& kernels();

}  // namespace lpk
