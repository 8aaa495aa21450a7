// Tables of values, TableFormat of lpkernels/formats, on the host: CUDA has none.
//
// A deterministic rounding to a table is a function of steps: the value with the number that counts
// the mode's thresholds up to x. lpkernels/backends/ladders.py makes the thresholds, the smallest
// doubles that go up to each value. They are exact for a double and for a longer sum made odd,
// because a boundary has at most 52 significant bits.
#pragma once

#include <cstdint>

namespace lpk {

enum class Rounding : int32_t;
struct Table;

// Deterministic modes, in the order of Rounding.
constexpr int kLadders = 6;

// A table as Python gives it. The arrays are copied.
struct TableParts {
  int64_t count;         // of the values
  const double* values;  // ascending
  const int32_t* codes;
  const double* ladders;  // kLadders times count - 1 thresholds
  int bits;               // of a code
  int64_t nan_code;       // -1: NaN has none
  bool infinity_is_nan;   // else an infinity takes the end
};

// Makes a table known for as long as the process lives; the same handle again changes nothing.
void add_table(int64_t handle, const TableParts& parts);
// Throws std::invalid_argument where add_table did not get the handle.
const Table& table_of(int64_t handle);

double table_min(const Table& t);
double table_max(const Table& t);
int table_bits(const Table& t);

// y[i] = round(x[i]). thresholds: of the draw of each value, read by stochastic rounding alone.
void round_to_table(const Table& t, Rounding mode, const double* x, const double* thresholds,
                    double* y, int64_t count);

// The steps of a deterministic mode on the words of float32 values. Every sign and exponent has a
// row, which is one word: in its lowest kShiftBits bits a shift, and above them the number of the
// row's first cell. The 23 other bits of a value's word, moved to the right by the shift, tell the
// value's cell, counted from that first one. A cell is the number of thresholds up to the least
// value that falls into it. `steps` comparisons from that threshold on give the number of
// thresholds up to x, which is the index of the rounded value. The caller rounds NaN and
// infinities.
struct WordLadder {
  static constexpr uint32_t kShiftBits = 5;
  const uint32_t* rows;
  const uint32_t* cells;
  const uint32_t* thresholds;  // words, as the next
  const uint32_t* values;
  int steps;
  uint32_t infinity[2];  // the words that an infinity becomes, and one below zero
};
WordLadder word_ladder(const Table& t, Rounding mode);

// The same steps by cells of one width, for tables that need few of them: two reads for a value,
// where WordLadder needs four.
//
// The word of a magnitude, shifted and kept between `first` and the number of the last cell, is
// its cell. Cells of positive values come first, then as many of negative ones. A cell has a
// threshold, which is NaN or a number beyond the cell where none lies inside, and two values: the
// one below the threshold, and the one from there on.
struct TableCells {
  uint32_t count;  // of cells of each sign; 0: the table needs too many
  uint32_t first;
  int shift;
  const uint32_t* thresholds;
  const uint32_t* values;
  uint32_t infinity[2];  // as in WordLadder
};
TableCells table_cells(const Table& t, Rounding mode);

// The code of a value, or kNoCode.
uint32_t table_code(const Table& t, double x);
// NaN for a code that no value has.
double table_value(const Table& t, uint32_t code);

}  // namespace lpk
