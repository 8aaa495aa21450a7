// The elements of a tensor in a block format, by pieces: read as words or doubles, and their
// largest magnitudes.
#pragma once

#include <atomic>
#include <vector>

#include "block_kernels.h"
#include "cpu/drivers/aligned.h"
#include "cpu/drivers/parallel.h"
#include "quantize_spans.h"

namespace lpk {

// Columns of a piece at most: their factors and scales lie in the first cache.
constexpr int64_t kColumns = 2 * kSpan;
// Elements of a piece, where its tiles allow it, and those that a thread takes at a time.
constexpr int64_t kPiece = 32 * kSpan;
constexpr int64_t kGrain = 64 * kSpan;
// Vectors reach so far beyond the end of a piece's arrays.
constexpr int64_t kSlack = 16;
// Magnitudes beyond these become the nearest end, which scales and rounds alike: quotients by s t,
// between 2^-298 and 2^256, stay normal, and beyond every format.
constexpr double kLeastMagnitude = 0x1p-500, kMostMagnitude = 0x1p600;

// |x|, in between the ends; NaN is above infinity as bits, and so are bits compared.
inline double clamped_magnitude(double x) {
  const double a = std::fabs(x);
  return a > 0 && a < kLeastMagnitude         ? kLeastMagnitude
         : a > kMostMagnitude && a < HUGE_VAL ? kMostMagnitude
                                              : a;
}

inline double larger_bits(double a, double b) {
  return bits_of_double(a) > bits_of_double(b) ? a : b;
}

// The larger of the two, where other threads do so too.
inline void raise(std::atomic<int64_t>& bits, double magnitude) {
  const int64_t after = bits_of_double(magnitude);
  int64_t before = bits;
  while (before < after && !bits.compare_exchange_weak(before, after)) {
  }
}

// Columns first .. first + width of a band: the rows that a row of tiles takes.
struct Piece {
  int64_t band, col, width;
};

// What a thread needs for a piece.
struct Space {
  std::vector<uint32_t> words, columns, tiles;
  std::vector<double> doubles, largest;
  std::vector<float> scale, factor, t, column_scale, column_factor, column_t, column_amax;
  Counted counted;

  explicit Space(const QuantizeArgs& args) : counted(args) {}

  void fit(int64_t tile_count, int64_t cols) {
    grow(tile_count + kSlack, tiles, largest, scale, factor, t);
    grow(cols + kSlack, columns, column_scale, column_factor, column_t, column_amax);
  }
};

// The elements of a piece: words or doubles, rows `stride` apart.
struct View {
  const uint32_t* words = nullptr;
  const double* doubles = nullptr;
  int64_t stride, rows, cols, index;

  double at(int64_t row, int64_t col) const {
    const int64_t place = row * stride + col;
    return words == nullptr ? doubles[place] : static_cast<double>(float_of_bits(words[place]));
  }
};

class BlockSource {
 protected:
  explicit BlockSource(const QuantizeArgs& args)
      : args_(args),
        format_(args.format),
        grid_(args.grid.joined(format_.by_line())),
        kernel_(kernels()),
        by_(*kernel_.families.blocks),
        threads_(args.count < 2 * kGrain ? 1 : args.threads),
        in_words_(args.x_type != ElementType::kFloat64 || format_.steps != Steps::kExact) {}

  View view_of(const Piece& piece, Space& space) const {
    const int64_t row = piece.band % grid_.down() * grid_.tall;
    View view;
    view.rows = std::min(grid_.tall, grid_.rows - row);
    view.cols = piece.width;
    view.index = ((piece.band / grid_.down()) * grid_.rows + row) * grid_.cols + piece.col;
    view.stride = grid_.cols;
    if (args_.x_type == ElementType::kFloat32) {
      view.words = static_cast<const uint32_t*>(args_.x) + view.index;
      return view;
    }
    view.stride = piece.width;
    const int64_t size = view.rows * piece.width + kSlack;
    in_words_ ? grow(size, space.words) : grow(size, space.doubles);
    for (int64_t r = 0; r < view.rows; ++r)
      widen_row(view.index + r * grid_.cols, piece.width, r * piece.width, space);
    view.words = in_words_ ? space.words.data() : nullptr;
    view.doubles = in_words_ ? nullptr : space.doubles.data();
    return view;
  }

  // Elements from row-major place `index` on become words or doubles from `at` on.
  void widen_row(int64_t index, int64_t count, int64_t at, Space& space) const {
    const char* x = static_cast<const char*>(args_.x) + index * element_bytes(args_.x_type);
    if (args_.x_type == ElementType::kFloat64) {
      const auto* from = static_cast<const double*>(args_.x) + index;
      for (int64_t i = 0; i < count; ++i) {
        if (in_words_) {
          space.words[at + i] = bits_of_float(static_cast<float>(from[i]));
        } else {
          space.doubles[at + i] = std::copysign(clamped_magnitude(from[i]), from[i]);
        }
      }
      return;
    }
    for (int64_t i = 0; i < count; i += kSpan)
      by_.widen_words(x + i * element_bytes(args_.x_type), args_.x_type, std::min(kSpan, count - i),
                      space.words.data() + at + i);
  }

  // Magnitudes of the view's tiles; `wide` columns each, where that is not the grid's.
  void find_largest(const View& view, int64_t count, Space& space, int64_t wide = 0) const {
    if (wide == 0) wide = grid_.wide;
    if (view.words != nullptr) {
      by_.largest({view.words, view.stride, view.rows, view.cols}, wide, space.columns.data(),
                  space.tiles.data());
      for (int64_t i = 0; i < count; ++i)
        space.largest[i] = static_cast<double>(float_of_bits(space.tiles[i]));
      return;
    }
    std::fill_n(space.largest.begin(), count, 0.0);
    for (int64_t r = 0; r < view.rows; ++r) {
      for (int64_t c = 0; c < view.cols; ++c) {
        double& largest = space.largest[c / wide];
        largest = larger_bits(largest, std::fabs(view.doubles[r * view.stride + c]));
      }
    }
  }

  // The largest finite magnitude.
  double finite_amax() const {
    std::atomic<int64_t> all{0};
    parallel_ranges(args_.count, kGrain, threads_, [&](int64_t begin, int64_t end) {
      Space space(args_);
      double most = 0;
      for (int64_t i = begin; i < end; i += kColumns)
        most = std::max(most, finite_amax(i, std::min(kColumns, end - i), space));
      raise(all, most);
    });
    return double_of_bits(all);
  }

  double finite_amax(int64_t begin, int64_t count, Space& space) const {
    uint32_t largest;
    const uint32_t* words = static_cast<const uint32_t*>(args_.x) + begin;
    if (args_.x_type != ElementType::kFloat32) {
      in_words_ ? grow(kColumns + kSlack, space.words) : grow(kColumns, space.doubles);
      widen_row(begin, count, 0, space);
      words = space.words.data();
    }
    double most = 0;
    if (in_words_) {
      by_.largest({words, count, 1, count}, count, nullptr, &largest);
      if (float_of_bits(largest) < HUGE_VALF) return float_of_bits(largest);
      for (int64_t i = 0; i < count; ++i) {
        const double a = std::fabs(float_of_bits(words[i]));
        if (a < HUGE_VAL) most = std::max(most, a);
      }
      return most;
    }
    for (int64_t i = 0; i < count; ++i) {
      const double a = std::fabs(space.doubles[i]);
      if (a < HUGE_VAL) most = std::max(most, a);
    }
    return most;
  }

  // The largest finite magnitude of each line: a row, or a column of tiles of one column.
  std::vector<double> finite_amaxes() const {
    std::vector<double> all(static_cast<size_t>(grid_.lines()));
    const int64_t strips = (grid_.cols + kColumns - 1) / kColumns, bands = grid_.down();
    const int64_t parts = of_columns() ? strips : bands, passes = of_columns() ? bands : strips;
    const int64_t grain = std::max<int64_t>(1, kGrain / (kColumns * grid_.tall * passes));
    parallel_ranges(grid_.outer * parts, grain, threads_, [&](int64_t begin, int64_t end) {
      Space space(args_);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t pass = 0; pass < passes; ++pass) {
          const int64_t strip = of_columns() ? i % strips : pass, col = strip * kColumns;
          const int64_t band = of_columns() ? i / strips * bands + pass : i;
          raise_lines({band, col, std::min(kColumns, grid_.cols - col)}, space, all.data());
        }
      }
    });
    return all;
  }

  bool of_columns() const { return grid_.wide == 1; }

  void raise_lines(const Piece& piece, Space& space, double* all) const {
    const int64_t count = of_columns() ? piece.width : 1, wide = piece.width / count;
    space.fit(count, piece.width);
    const View view = view_of(piece, space);
    find_largest(view, count, space, wide);
    double* of_lines = all + first_line(piece.band, piece.col);
    for (int64_t i = 0; i < count; ++i) {
      double most = space.largest[i];
      if (!(most < HUGE_VAL)) most = largest_finite(view, i, wide);
      of_lines[i] = std::max(of_lines[i], most);
    }
  }

  static double largest_finite(const View& view, int64_t first, int64_t wide) {
    double most = 0;
    for (int64_t r = 0; r < view.rows; ++r) {
      for (int64_t c = first; c < first + wide; ++c) {
        const double a = std::fabs(view.at(r, c));
        if (a < HUGE_VAL) most = std::max(most, a);
      }
    }
    return most;
  }

  // The line of the tiles of a band from a column on.
  int64_t first_line(int64_t band, int64_t col) const {
    return of_columns() ? band / grid_.down() * grid_.cols + col : band;
  }

  const QuantizeArgs& args_;
  const BlockFormat format_;
  const Grid grid_;
  const Kernels& kernel_;
  const BlockKernels& by_;
  const int threads_;
  const bool in_words_;  // whether elements are read as float32 words, and not as doubles
};

}  // namespace lpk
