// Block formats: the scale of every tile from its largest magnitude, then its elements.
//
// A piece is all rows of some tiles side by side, small enough that its elements are still in a
// cache when they are rounded. Where a tile is longer than a piece, the magnitudes of all tiles are
// found first.
#include <optional>

#include "block_source.h"
#include "common/programs.h"

namespace lpk {

namespace {

class Blocks : BlockSource {
 public:
  explicit Blocks(const QuantizeArgs& args) : BlockSource(args) {
    const double amax = args.limits != nullptr       ? given_amax(*args.limits)
                        : format_.has_tensor_scale() ? finite_amax()
                                                     : 0.0;
    t_ = 1;
    if (format_.steps != Steps::kExact) {
      program_.emplace(format_, args_.rounding, static_cast<float>(amax));
      t_ = program_->tensor_scale();
    } else if (format_.has_tensor_scale()) {
      t_ = exact_tensor_scale(amax, format_);
    }
    if (args.tensor_scale != nullptr) *args.tensor_scale = canonical_float(t_);
    given_ = args.limits != nullptr && grid_.tiles() == 1 && whole_tensor();
    given_amax_ = amax;
    choose_words();
  }

  void run() const { grid_.wide > kColumns ? run_long_tiles() : run_pieces(); }

 private:
  bool whole_tensor() const { return args_.format[InBlock::kLines] == kWholeTensor; }

  static double given_amax(double amax) {
    return amax >= 0 && amax < HUGE_VAL ? clamped_magnitude(amax) : static_cast<double>(NAN);
  }

  // Where rounding of words is exact.
  void choose_words() {
    const Format& f = format_.element;
    const bool directed = args_.rounding == Rounding::kTowardPositive ||
                          args_.rounding == Rounding::kTowardNegative ||
                          args_.rounding == Rounding::kToOdd;
    const bool exact = format_.steps == Steps::kExact;
    bracketed_ = exact && format_.kind != ScaleKind::kE8m0;
    // A factor below 1 may make a number a zero, which the rounding modes to a side tell apart.
    exact_products_ = directed;
    by_words_ = in_words_ && args_.counts == nullptr && f.kind == Kind::kFloat &&
                (args_.y == nullptr || args_.y_type == ElementType::kFloat32);
    if (exact) {
      const double quantum = f.subnormals ? f.quantum : f.min_normal;
      by_words_ &= !bracketed_ || (!directed && quantum >= 0x1p-90 && f.max <= 0x1p100);
    } else {
      by_words_ &= !program_->divides() && !format_.ties_toward_zero();
    }
    if (t_ != 1 && !codes_only()) {
      // q s must be a float32, so that q s t is rounded once; 0 times an infinite t is NaN.
      const Format& s = format_.scale;
      by_words_ &= std::isfinite(t_) && f.man_bits + s.man_bits + 2 <= 24 &&
                   f.quantum * s.quantum >= 0x1p-149 && f.max * s.max < 0x1p128;
    }
    if (args_.rounding == Rounding::kStochastic) {
      // Vectors of draws begin at a word of random bits, and those of a call have one key.
      const int64_t per_word = int64_t{1} << draw_layout(args_.random_bits).per_word_log2;
      const int64_t step = grid_.wide > kColumns ? grid_.wide : width();
      by_words_ &= (grid_.cols % per_word == 0 || grid_.outer * grid_.rows == 1) &&
                   (step % per_word == 0 || step >= grid_.cols) &&
                   args_.count / per_word < int64_t{1} << 32;
    }
  }

  bool codes_only() const { return args_.scales != nullptr; }

  // Columns of a piece: whole tiles.
  int64_t width() const {
    const int64_t fitting = std::min(kColumns, std::max<int64_t>(64, kPiece / grid_.tall));
    // Four tiles, so that draws of pieces begin at a word.
    const int64_t unit = 4 * grid_.wide;
    if (fitting >= unit) return fitting / unit * unit;
    return grid_.cols <= unit ? unit : std::max(grid_.wide, fitting / grid_.wide * grid_.wide);
  }

  void run_pieces() const {
    const int64_t w = width(), strips = (grid_.cols + w - 1) / w;
    const int64_t grain = std::max<int64_t>(1, kGrain / (std::min(w, grid_.cols) * grid_.tall));
    parallel_ranges(grid_.outer * grid_.down() * strips, grain, threads_,
                    [&](int64_t begin, int64_t end) {
                      Space space(args_);
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t col = i % strips * w;
                        run_piece({i / strips, col, std::min(w, grid_.cols - col)}, space);
                      }
                    });
  }

  void run_piece(const Piece& piece, Space& space) const {
    const int64_t count = (piece.width + grid_.wide - 1) / grid_.wide;
    space.fit(count, piece.width);
    const View view = view_of(piece, space);
    find_largest(view, count, space);
    make_scales(piece.band * grid_.across() + piece.col / grid_.wide, count, space);
    by_.spread(space.scale.data(), piece.width, grid_.wide, space.column_scale.data());
    by_.spread(space.factor.data(), piece.width, grid_.wide, space.column_factor.data());
    round_piece(view, space);
  }

  // Tiles that are longer than a piece.
  void run_long_tiles() const {
    const int64_t per_tile = (grid_.wide + kColumns - 1) / kColumns, tiles = grid_.tiles();
    std::vector<std::atomic<int64_t>> largest(static_cast<size_t>(tiles));
    for (auto& bits : largest) bits = 0;
    const auto for_pieces = [&](const auto& body) {
      const int64_t grain = std::max<int64_t>(1, kGrain / (kColumns * grid_.tall));
      parallel_ranges(tiles * per_tile, grain, threads_, [&](int64_t begin, int64_t end) {
        Space space(args_);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t tile = i / per_tile, first = tile % grid_.across() * grid_.wide;
          const int64_t col = first + i % per_tile * kColumns;
          const int64_t stop = std::min({first + grid_.wide, col + kColumns, grid_.cols});
          if (col >= stop) continue;
          body(tile, Piece{tile / grid_.across(), col, stop - col}, space);
        }
      });
    };
    for_pieces([&](int64_t tile, const Piece& piece, Space& space) {
      space.fit(1, piece.width);
      find_largest(view_of(piece, space), 1, space, piece.width);
      raise(largest[static_cast<size_t>(tile)], space.largest[0]);
    });
    Space all(args_);
    all.fit(tiles, 0);
    for (int64_t i = 0; i < tiles; ++i) all.largest[i] = double_of_bits(largest[i]);
    make_scales(0, tiles, all);
    for_pieces([&](int64_t tile, const Piece& piece, Space& space) {
      space.fit(1, piece.width);
      std::fill_n(space.column_scale.begin(), piece.width, all.scale[tile]);
      std::fill_n(space.column_factor.begin(), piece.width, all.factor[tile]);
      round_piece(view_of(piece, space), space);
    });
  }

  // Scales of tiles from number `first` on, and the factors of words.
  void make_scales(int64_t first, int64_t count, Space& space) const {
    if (given_) {
      const bool finite = space.largest[0] < HUGE_VAL;
      space.largest[0] = finite ? given_amax_ : static_cast<double>(NAN);
    }
    float *s = space.scale.data(), *factor = space.factor.data();
    if (program_) {
      for (int64_t i = 0; i < count; ++i) {
        const ProgramScale p = program_->scale(static_cast<float>(space.largest[i]));
        s[i] = p.s;
        // Codes of 0 times an infinite scale are NaN.
        factor[i] = codes_only() || p.s < HUGE_VALF ? p.factor : NAN;
      }
    } else {
      by_.scales(format_, std::isfinite(t_) ? t_ : 1.0, exact_products_, space.largest.data(),
                 count, s, factor);
      for (int64_t i = 0; i < count && !std::isfinite(t_); ++i) s[i] = factor[i] = NAN;
    }
    if (args_.scales != nullptr) {
      for (int64_t i = 0; i < count; ++i) args_.scales[first + i] = canonical_float(s[i]);
    }
    // Zeros are themselves under any scale but beside an infinite factor; 2^-127 would be slow. A
    // given amax of 0 says nothing of the values.
    for (int64_t i = 0; i < count && !given_; ++i) {
      if (space.largest[i] == 0 && s[i] == s[i] && factor[i] != HUGE_VALF) s[i] = 1;
      if (space.largest[i] == 0 && !program_ && factor[i] == factor[i]) factor[i] = 1;
    }
  }

  ScaledSpan span_of(int64_t count, const float* scale, const float* factor) const {
    ScaledSpan span{};
    span.count = count;
    span.tiles = {factor, scale, static_cast<float>(t_)};
    span.shrinking = format_.is_table      ? Shrinking::kNearest
                     : !program_           ? Shrinking::kExact
                     : program_->divides() ? Shrinking::kQuotient
                                           : Shrinking::kProduct;
    span.ties_toward_zero = format_.ties_toward_zero() && args_.rounding == Rounding::kNearestEven;
    span.one_zero = format_.has_one_zero();
    return span;
  }

  void round_piece(const View& view, Space& space) const {
    const float *scale = space.column_scale.data(), *factor = space.column_factor.data();
    if (by_words_ && round_words(view, scale, factor)) return;
    for (int64_t r = 0; r < view.rows; ++r) round_row(view, r, scale, factor, space.counted);
  }

  bool round_words(const View& view, const float* scale, const float* factor) const {
    ScaledWords job{};
    static_cast<ElementRounding&>(job.element) = args_;
    job.element.format = format_.codes.ints;
    job.element.index = static_cast<uint64_t>(view.index);
    job.from = {view.words, view.stride, view.rows, view.cols};
    job.y = static_cast<float*>(args_.y) + view.index;
    job.y_stride = job.index_stride = grid_.cols;
    job.tiles = {factor, scale, static_cast<float>(t_)};
    job.bracketed = bracketed_;
    job.codes = codes_only();
    job.one_zero = format_.has_one_zero();
    job.streamed = args_.count * 8 >= args_.stream_bytes;
    job.driver = this;
    job.exact = [](const ScaledWords& from, int64_t row, int64_t col, int64_t count, float* y) {
      const auto* self = static_cast<const Blocks*>(from.driver);
      double x[kWordGroup], shrunk[kWordGroup];
      self->kernel_.widen(
          reinterpret_cast<const float*>(from.from.x + row * from.from.stride + col), count, x);
      const int64_t index =
          static_cast<int64_t>(from.element.index) + row * from.index_stride + col;
      self->round_span(x, self->span_of(count, from.tiles.scale + col, from.tiles.factor + col),
                       index, nullptr, shrunk, y);
    };
    return by_.words(job);
  }

  void round_row(const View& view, int64_t row, const float* scale, const float* factor,
                 Counted& counted) const {
    double x[kSpan], shrunk[kSpan];
    float y[kSpan];
    for (int64_t c = 0; c < view.cols; c += kSpan) {
      const int64_t n = std::min(kSpan, view.cols - c), at = row * view.stride + c;
      const int64_t index = view.index + row * grid_.cols + c;
      const double* values = x;
      if (view.words != nullptr) {
        kernel_.widen(reinterpret_cast<const float*>(view.words + at), n, x);
      } else {
        values = view.doubles + at;
      }
      if (args_.counts != nullptr) {
        double original[kSpan];
        load_span(args_, kernel_, index, n, original);
        counted.saw(original, n);
      }
      const bool direct = args_.y != nullptr && args_.y_type == ElementType::kFloat32;
      float* to = direct ? static_cast<float*>(args_.y) + index : y;
      round_span(values, span_of(n, scale + c, factor + c), index, &counted, shrunk, to);
      if (args_.y == nullptr || direct) continue;
      kernel_.widen(to, n, x);
      store_span(args_, kernel_, x, index, n);
    }
  }

  // The rule for every format, mode and value.
  void round_span(const double* x, const ScaledSpan& span, int64_t index, Counted* counted,
                  double* shrunk, float* y) const {
    by_.shrink(span, x, shrunk);
    double codes[kSpan];
    RoundBlock job = round_job(args_, format_.codes.ints);
    job.x = shrunk;
    job.y = codes;
    job.count = span.count;
    job.index = static_cast<uint64_t>(index);
    kernel_.round(job);
    codes_only() ? by_.codes(span, codes, y) : by_.values(span, codes, y);
    if (counted == nullptr || args_.counts == nullptr) return;
    double values[kSpan];
    kernel_.widen(y, span.count, values);
    counted->rounded(job, shrunk, values);
  }

  static constexpr int64_t kWholeTensor = -2;
  static constexpr int64_t kWordGroup = 64;

  std::optional<Program> program_;
  double t_;
  bool given_;
  double given_amax_;
  bool by_words_, bracketed_, exact_products_;
};

}  // namespace

void quantize_blocks(const QuantizeArgs& args) {
  const FloatEnvironment environment;
  Blocks(args).run();
}

}  // namespace lpk
