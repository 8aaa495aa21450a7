// The choice between the two codes of a tile, whose largest is mapped to 6 or to 4:
// lpkernels/reference/candidates.py is the definition.
#pragma once

#include "block_source.h"

namespace lpk {

// One of the two: its scale and its factor for every tile and for every column of a piece, and its
// codes, row after row.
struct Candidate {
  std::vector<float> scale, factor, column_scale, column_factor, codes, errors;

  void fit(int64_t tile_count, int64_t rows, int64_t cols) {
    grow(tile_count + kSlack, scale, factor);
    grow(cols + kSlack, column_scale, column_factor, errors);
    grow(rows * cols + kSlack, codes);
  }
};

// A sum of products of 128 bits, as high * 2^64 + low.
class ExactSum {
 public:
  void add(__int128 product) {
    high_ += product >> 64;
    low_ += static_cast<uint64_t>(product);
  }
  bool negative() const { return high_ + (low_ >> 64) < 0; }

 private:
  __int128 high_ = 0, low_ = 0;
};

// The tiles of a piece: values, and both candidates of them.
class Choice {
 public:
  Choice(const View& view, const Candidate& six, const Candidate& four, const TileColumns& tiles,
         int64_t wide, bool squares)
      : view_(view), six_(six), four_(four), tiles_(tiles), wide_(wide), squares_(squares) {}

  // Whether the codes of 4 are nearer to a tile, whose largest magnitude is `largest`, in real
  // numbers.
  bool four_is_nearer(int64_t tile, double largest) const {
    // NaN has no codes, and equal scales have equal ones.
    if (!(six_.scale[tile] < four_.scale[tile])) return false;
    double of_six = 0, of_four = 0, number = 0;
    for_each(tile, [&](double x, double six, double four) {
      of_six += error(six - x);
      of_four += error(four - x);
      ++number;
    });
    // Each of at most six operations and of the sums is off by 2^-53.
    const double least = (of_six + of_four) * (number + 8) * 0x1p-51;
    if (std::fabs(of_six - of_four) > least) return of_four < of_six;
    return exactly(tile, log2_of(largest));
  }

 private:
  double error(double u) const { return squares_ ? u * u : std::fabs(u); }

  // The value of every element, and the values of its codes, which are exact.
  template <class Body>
  void for_each(int64_t tile, const Body& body) const {
    const int64_t begin = tile * wide_, end = std::min(begin + wide_, view_.cols);
    for (int64_t r = 0; r < view_.rows; ++r) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t at = r * view_.cols + c;
        const double t = *tiles_.t_at(c);
        body(view_.at(r, c), six_.codes[at] * static_cast<double>(six_.scale[tile]) * t,
             four_.codes[at] * static_cast<double>(four_.scale[tile]) * t);
      }
    }
  }

  // An element whose codes are zeros has the same error twice. All others, and the values of codes,
  // are multiples of 2^(top - 58) below 2^(top + 3), for scales and t of 24 bits and values of 53.
  bool exactly(int64_t tile, int top) const {
    const double unit = power_of_two(58 - top);
    ExactSum sum;
    for_each(tile, [&](double x, double six, double four) {
      if (six == 0 && four == 0) return;
      const auto whole = [&](double v) { return static_cast<int64_t>(v * unit); };
      const int64_t to_four = whole(four) - whole(x), to_six = whole(six) - whole(x);
      if (squares_) {
        sum.add(static_cast<__int128>(to_four - to_six) * (to_four + to_six));
      } else {
        sum.add(std::abs(to_four) - std::abs(to_six));
      }
    });
    return sum.negative();
  }

  const View& view_;
  const Candidate &six_, &four_;
  const TileColumns& tiles_;
  int64_t wide_;
  bool squares_;
};

// The errors of the tiles of a piece as TransformerEngine sums them: those of a tile's row in
// order, then the rows in a tree.
class ErrorSums {
 public:
  static constexpr int64_t kTall = 16;

  // rows: kTall for tiles of several rows, 1 for blocks along a row or a column.
  ErrorSums(int64_t tiles, int64_t wide, int64_t rows, const Kernels& kernel)
      : tiles_(tiles), wide_(wide), rows_(rows), kernel_(kernel) {
    sums_.assign(static_cast<size_t>(tiles * rows), 0.0f);
  }

  // The errors of a row of the piece, one for each column.
  void add(int64_t row, const float* errors, int64_t cols) {
    float* sums = sums_.data() + (rows_ == 1 ? 0 : row * tiles_);
    const int64_t whole = cols / wide_;
    const float* by_place = errors;
    if (wide_ > 1) {
      grow(whole * wide_, turned_);
      kernel_.transpose(errors, wide_, whole, wide_, turned_.data(), whole);
      by_place = turned_.data();
    }
    for (int64_t i = 0; i < wide_; ++i, by_place += whole) {
      for (int64_t tile = 0; tile < whole; ++tile) sums[tile] += by_place[tile];
    }
    for (int64_t c = whole * wide_; c < cols; ++c) sums[whole] += errors[c];
  }

  // The sum of every tile. The rows of a short tile are followed by rows of zeros.
  const float* finish() {
    for (int64_t half = static_cast<int64_t>(sums_.size()) / 2; half >= tiles_; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sums_[i] += sums_[half + i];
    }
    return sums_.data();
  }

 private:
  int64_t tiles_, wide_, rows_;
  const Kernels& kernel_;
  std::vector<float> sums_, turned_;
};

}  // namespace lpk
