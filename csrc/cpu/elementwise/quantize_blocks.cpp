// Block formats: the scale of every tile from its largest magnitude, then its elements.
//
// A piece is all rows of some tiles side by side, small enough that its elements are still in a
// cache when they are rounded. Where a tile is longer than a piece, the magnitudes of all tiles are
// found first.
#include <algorithm>
#include <utility>

#include "candidates.h"
#include "common/programs.h"

namespace lpk {

namespace {

// One number for the tensor, or one for each line.
template <class T>
class OfLines {
 public:
  OfLines(std::vector<T> values, bool by_line) : values_(std::move(values)), step_(by_line) {}

  const T& operator[](int64_t line) const { return values_[static_cast<size_t>(line * step_)]; }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
  int64_t step_;
};

class Blocks : BlockSource {
 public:
  explicit Blocks(const QuantizeArgs& args)
      : BlockSource(args),
        amax_(amaxes(), format_.by_line()),
        t_(scales_of_lines(), format_.by_line()),
        program_(format_, args.rounding),
        of_program_(numbers_of_lines(), format_.by_line()) {
    if (args.tensor_scale != nullptr) {
      std::transform(t_.values().begin(), t_.values().end(), args.tensor_scale,
                     [](float t) { return canonical_float(t); });
    }
    for (const float t : t_.values()) {
      has_t_ |= t != 1;
      finite_t_ &= std::isfinite(t);
    }
    has_amax_ = args.limits != nullptr && grid_.tiles() == 1 && whole_tensor();
    choose_words();
  }

  void run() const {
    grid_.wide > kColumns && !format_.two_candidates ? run_long_tiles() : run_pieces();
  }

 private:
  bool whole_tensor() const { return args_.format[InBlock::kLines] == kWholeTensor; }

  bool is_exact() const { return format_.steps == Steps::kExact; }

  static double amax_of_limit(double amax) {
    return amax >= 0 && amax < HUGE_VAL ? clamped_magnitude(amax) : static_cast<double>(NAN);
  }

  std::vector<double> amaxes() const {
    const bool by_line = format_.by_line();
    if (args_.limits == nullptr) {
      if (by_line) return finite_amaxes();
      return {format_.has_tensor_scale() ? finite_amax() : 0.0};
    }
    std::vector<double> amax(static_cast<size_t>(by_line ? grid_.lines() : 1));
    std::transform(args_.limits, args_.limits + amax.size(), amax.begin(), amax_of_limit);
    return amax;
  }

  std::vector<ProgramTensor> numbers_of_lines() const {
    std::vector<ProgramTensor> numbers;
    if (is_exact()) return numbers;
    for (const double amax : amax_.values())
      numbers.emplace_back(static_cast<float>(amax), format_);
    return numbers;
  }

  std::vector<float> scales_of_lines() const {
    std::vector<float> scales;
    for (const double amax : amax_.values()) {
      const double t = !format_.has_tensor_scale() ? 1
                       : is_exact() ? exact_tensor_scale(amax, format_)
                                    : ProgramTensor(static_cast<float>(amax), format_).t;
      scales.push_back(static_cast<float>(t));
    }
    return scales;
  }

  // Where rounding of words is exact.
  void choose_words() {
    const Format& f = format_.element;
    const bool directed = args_.rounding == Rounding::kTowardPositive ||
                          args_.rounding == Rounding::kTowardNegative ||
                          args_.rounding == Rounding::kToOdd;
    bracketed_ = is_exact() && format_.kind != ScaleKind::kE8m0;
    // A factor below 1 may make a number a zero, which the rounding modes to a side tell apart.
    exact_products_ = directed;
    codes_by_words_ = in_words_ && f.kind == Kind::kFloat;
    if (is_exact()) {
      const double quantum = f.subnormals ? f.quantum : f.min_normal;
      codes_by_words_ &= !bracketed_ || (!directed && quantum >= 0x1p-90 && f.max <= 0x1p100);
    } else {
      codes_by_words_ &= !program_.divides() && !format_.ties_toward_zero();
    }
    by_words_ = codes_by_words_ && args_.counts == nullptr &&
                (args_.y == nullptr || args_.y_type == ElementType::kFloat32);
    if (has_t_ && !codes_only()) {
      // q s must be a float32, so that q s t is rounded once; 0 times an infinite t is NaN.
      const Format& s = format_.scale;
      by_words_ &= finite_t_ && f.man_bits + s.man_bits + 2 <= 24 &&
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
                      Candidate both[2];
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t col = i % strips * w;
                        run_piece({i / strips, col, std::min(w, grid_.cols - col)}, space, both);
                      }
                    });
  }

  void run_piece(const Piece& piece, Space& space, Candidate* both) const {
    const int64_t count = (piece.width + grid_.wide - 1) / grid_.wide;
    space.fit(count, piece.width);
    const View view = view_of(piece, space);
    find_largest(view, count, space);
    find_lines(piece, count, space);
    const int64_t first = piece.band * grid_.across() + piece.col / grid_.wide;
    if (format_.two_candidates) {
      choose(view, first_line(piece), count, space, both);
    } else {
      find_scales(first_line(piece), count, format_.target, space, space.scale.data(),
                  space.factor.data());
    }
    take_scales(first, count, space);
    by_.spread(space.scale.data(), piece.width, grid_.wide, space.column_scale.data());
    by_.spread(space.factor.data(), piece.width, grid_.wide, space.column_factor.data());
    round_piece(view, space);
  }

  int64_t first_line(const Piece& piece) const {
    return format_.by_line() ? BlockSource::first_line(piece.band, piece.col) : 0;
  }
  // From one tile of a piece to the next.
  int64_t line_step() const { return format_.by_line() && of_columns() ? 1 : 0; }

  void find_lines(const Piece& piece, int64_t count, Space& space) const {
    const float* t = &t_[first_line(piece)];
    if (line_step() == 1) {
      std::copy_n(t, count, space.t.begin());
      std::copy_n(t, count, space.column_t.begin());
    } else {
      std::fill_n(space.t.begin(), count, *t);
      std::fill_n(space.column_t.begin(), kSlack, *t);
    }
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
    for (int64_t first = 0; first < tiles; first += grid_.across()) {
      const int64_t line = first_line({first / grid_.across(), 0, 0});
      std::fill_n(all.t.begin() + first, grid_.across(), t_[line]);
      find_scales(line, grid_.across(), format_.target, all, all.scale.data(), all.factor.data(),
                  first);
    }
    take_scales(0, tiles, all);
    for_pieces([&](int64_t tile, const Piece& piece, Space& space) {
      space.fit(1, piece.width);
      std::fill_n(space.column_scale.begin(), piece.width, all.scale[tile]);
      std::fill_n(space.column_factor.begin(), piece.width, all.factor[tile]);
      std::fill_n(space.column_t.begin(), kSlack, all.t[tile]);
      round_piece(view_of(piece, space), space);
    });
  }

  // Scales of tiles whose largest map to `target`, and the factors of words; the tiles are those of
  // a band from line `line` on, and lie in the arrays from `at` on.
  void find_scales(int64_t line, int64_t count, double target, Space& space, float* s,
                   float* factor, int64_t at = 0) const {
    double* largest = space.largest.data() + at;
    if (has_amax_) largest[0] = largest[0] < HUGE_VAL ? amax_[0] : static_cast<double>(NAN);
    if (is_exact()) {
      return by_.scales(format_, target, space.t.data() + at, exact_products_, largest, count,
                        s + at, factor + at);
    }
    if (format_.two_candidates) {
      return find_candidate(line, count, target, largest, s + at, factor + at);
    }
    for (int64_t i = 0; i < count; ++i) {
      const ProgramTensor& of = of_program_[line + i * line_step()];
      const ProgramScale p = program_.scale(static_cast<float>(largest[i]), of);
      s[at + i] = p.s;
      // Codes of 0 times an infinite scale are NaN.
      factor[at + i] = codes_only() || p.s < HUGE_VALF ? p.factor : NAN;
    }
  }

  void find_candidate(int64_t line, int64_t count, double target, const double* largest, float* s,
                      float* factor) const {
    const float raise = target == kFour ? 1.5f : 1.0f;
    const ProgramTensor* of = &of_program_[line];
    RoundBlock job{};
    job.format = args_.format + InBlock::kScaleFormat;
    job.rounding = Rounding::kNearestEven;
    double numbers[kSpan];
    job.x = job.y = numbers;
    for (int64_t begin = 0; begin < count; begin += kSpan) {
      job.count = std::min(kSpan, count - begin);
      for (int64_t i = 0; i < job.count; ++i) {
        const float a = static_cast<float>(largest[begin + i]);
        numbers[i] = candidate_scale(a, of[(begin + i) * line_step()], raise);
      }
      kernel_.round(job);
      for (int64_t i = 0; i < job.count; ++i) {
        s[begin + i] = static_cast<float>(numbers[i]);
        factor[begin + i] = candidate_factor(s[begin + i], of[(begin + i) * line_step()]);
      }
    }
  }

  // Writes the scales of tiles from number `first` on.
  void take_scales(int64_t first, int64_t count, Space& space) const {
    float *s = space.scale.data(), *factor = space.factor.data();
    if (args_.scales != nullptr) {
      for (int64_t i = 0; i < count; ++i) args_.scales[first + i] = canonical_float(s[i]);
    }
    // Zeros are themselves under any scale but beside an infinite factor; 2^-127 would be slow. A
    // given amax of 0 says nothing of the values.
    for (int64_t i = 0; i < count && !has_amax_; ++i) {
      if (space.largest[i] == 0 && s[i] == s[i] && factor[i] != HUGE_VALF) s[i] = 1;
      if (space.largest[i] == 0 && is_exact() && factor[i] == factor[i]) factor[i] = 1;
    }
  }

  // The scales and factors of the nearer one of two candidates.
  void choose(const View& view, int64_t line, int64_t count, Space& space, Candidate* both) const {
    for (int k = 0; k < 2; ++k) {
      Candidate& one = both[k];
      one.fit(count, view.rows, view.cols);
      float *s = one.scale.data(), *factor = one.factor.data();
      find_scales(line, count, k == 0 ? kSix : kFour, space, s, factor);
      by_.spread(s, view.cols, grid_.wide, one.column_scale.data());
      by_.spread(factor, view.cols, grid_.wide, one.column_factor.data());
      const TileColumns tiles{one.column_factor.data(), one.column_scale.data(),
                              space.column_t.data(), line_step()};
      round_codes(view, tiles, one.codes.data());
    }
    const Candidate &six = both[0], &four = both[1];
    const auto take = [&](int64_t i, bool nearer) {
      space.scale[i] = nearer ? four.scale[i] : six.scale[i];
      space.factor[i] = nearer ? four.factor[i] : six.factor[i];
    };
    if (is_exact()) {
      const TileColumns tiles{nullptr, nullptr, space.column_t.data(), line_step()};
      const Choice choice(view, six, four, tiles, grid_.wide, format_.squares);
      for (int64_t i = 0; i < count; ++i) take(i, choice.four_is_nearer(i, space.largest[i]));
      return;
    }
    for (int64_t c = 0; c < view.cols; ++c)
      space.column_amax[c] = static_cast<float>(amax_[line + c * line_step()]);
    const int64_t rows = args_.format[InBlock::kLines] == 0 ? 1 : ErrorSums::kTall;
    ErrorSums sums[2] = {{count, grid_.wide, rows, kernel_}, {count, grid_.wide, rows, kernel_}};
    for (int64_t r = 0; r < view.rows; ++r) {
      for (int k = 0; k < 2; ++k) {
        by_.errors({view.cols, view.words + r * view.stride, both[k].codes.data() + r * view.cols,
                    both[k].column_scale.data(), space.column_amax.data(), largest_number(format_),
                    format_.squares},
                   both[k].errors.data());
        sums[k].add(r, both[k].errors.data(), view.cols);
      }
    }
    const float *of_six = sums[0].finish(), *of_four = sums[1].finish();
    for (int64_t i = 0; i < count; ++i) take(i, of_four[i] < of_six[i]);
  }

  ScaledSpan span_of(int64_t count, const TileColumns& tiles, int64_t col, bool codes) const {
    ScaledSpan span{};
    span.count = count;
    span.tiles = {tiles.factor + col, tiles.scale + col, tiles.t_at(col), tiles.t_step};
    span.has_t = has_t_;
    span.shrinking = format_.is_table     ? Shrinking::kNearest
                     : is_exact()         ? Shrinking::kExact
                     : program_.divides() ? Shrinking::kQuotient
                                          : Shrinking::kProduct;
    span.ties_toward_zero = format_.ties_toward_zero() && args_.rounding == Rounding::kNearestEven;
    span.one_zero = format_.has_one_zero();
    span.codes = codes;
    return span;
  }

  void round_piece(const View& view, Space& space) const {
    const TileColumns tiles{space.column_factor.data(), space.column_scale.data(),
                            space.column_t.data(), line_step()};
    if (by_words_) {
      ScaledWords job = words_of(view, tiles);
      job.y = static_cast<float*>(args_.y) + view.index;
      job.y_stride = grid_.cols;
      job.codes = codes_only();
      job.streamed = args_.count * 8 >= args_.stream_bytes;
      if (by_.words(job)) return;
    }
    for (int64_t r = 0; r < view.rows; ++r) round_row(view, r, tiles, space.counted);
  }

  // Codes of a piece, row after row.
  void round_codes(const View& view, const TileColumns& tiles, float* codes) const {
    if (codes_by_words_) {
      ScaledWords job = words_of(view, tiles);
      job.y = codes;
      job.y_stride = view.cols;
      job.codes = true;
      if (by_.words(job)) return;
    }
    double x[kSpan], shrunk[kSpan];
    for (int64_t r = 0; r < view.rows; ++r) {
      for (int64_t c = 0; c < view.cols; c += kSpan) {
        const int64_t n = std::min(kSpan, view.cols - c);
        round_span(values_of(view, r, c, n, x), span_of(n, tiles, c, true), index_of(view, r, c),
                   nullptr, shrunk, codes + r * view.cols + c);
      }
    }
  }

  ScaledWords words_of(const View& view, const TileColumns& tiles) const {
    ScaledWords job{};
    static_cast<ElementRounding&>(job.element) = args_;
    job.element.format = format_.codes.ints;
    job.element.index = static_cast<uint64_t>(view.index);
    job.from = {view.words, view.stride, view.rows, view.cols};
    job.index_stride = grid_.cols;
    job.tiles = tiles;
    job.bracketed = bracketed_;
    job.one_zero = format_.has_one_zero();
    job.driver = this;
    job.exact = [](const ScaledWords& from, int64_t row, int64_t col, int64_t count, float* y) {
      const auto* self = static_cast<const Blocks*>(from.driver);
      double x[kWordGroup], shrunk[kWordGroup];
      self->kernel_.widen(
          reinterpret_cast<const float*>(from.from.x + row * from.from.stride + col), count, x);
      const int64_t index =
          static_cast<int64_t>(from.element.index) + row * from.index_stride + col;
      self->round_span(x, self->span_of(count, from.tiles, col, from.codes), index, nullptr, shrunk,
                       y);
    };
    return job;
  }

  int64_t index_of(const View& view, int64_t row, int64_t col) const {
    return view.index + row * grid_.cols + col;
  }

  // Elements of a row as doubles, in the buffer if they have to be widened.
  const double* values_of(const View& view, int64_t row, int64_t col, int64_t count,
                          double* buffer) const {
    const int64_t at = row * view.stride + col;
    if (view.words == nullptr) return view.doubles + at;
    kernel_.widen(reinterpret_cast<const float*>(view.words + at), count, buffer);
    return buffer;
  }

  void round_row(const View& view, int64_t row, const TileColumns& tiles, Counted& counted) const {
    double x[kSpan], shrunk[kSpan];
    float y[kSpan];
    for (int64_t c = 0; c < view.cols; c += kSpan) {
      const int64_t n = std::min(kSpan, view.cols - c), index = index_of(view, row, c);
      const double* values = values_of(view, row, c, n, x);
      if (args_.counts != nullptr) {
        double original[kSpan];
        load_span(args_, kernel_, index, n, original);
        counted.saw(original, n);
      }
      const bool direct = args_.y != nullptr && args_.y_type == ElementType::kFloat32;
      float* to = direct ? static_cast<float*>(args_.y) + index : y;
      round_span(values, span_of(n, tiles, c, codes_only()), index, &counted, shrunk, to);
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
    span.codes ? by_.codes(span, codes, y) : by_.values(span, codes, y);
    if (counted == nullptr || args_.counts == nullptr) return;
    double values[kSpan];
    kernel_.widen(y, span.count, values);
    counted->rounded(job, shrunk, values);
  }

  static constexpr int64_t kWholeTensor = -2;
  static constexpr int64_t kWordGroup = 64;

  const OfLines<double> amax_;
  const OfLines<float> t_;
  const Program program_;
  const OfLines<ProgramTensor> of_program_;
  bool has_t_ = false, finite_t_ = true;
  bool has_amax_ = false;
  bool codes_by_words_, by_words_, bracketed_, exact_products_;
};

}  // namespace

void quantize_blocks(const QuantizeArgs& args) {
  const FloatEnvironment environment;
  Blocks(args).run();
}

}  // namespace lpk
