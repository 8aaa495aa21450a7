// Block formats packed block by block: a scale byte, then the codes of the block's elements.
#include <algorithm>
#include <cmath>
#include <vector>

#include "block_kernels.h"
#include "codes.h"
#include "cpu/drivers/aligned.h"
#include "cpu/drivers/parallel.h"
#include "pack.h"

namespace lpk {
namespace {

// Blocks side by side in a band, kPiece elements or one block, and where their codes are.
struct Piece {
  int64_t tile, count;    // the number of the first in the grid, and how many they are
  int64_t first;          // row-major place of their first element
  int64_t rows, cols;     // of all of them
  int64_t bit, bits_end;  // in the stream
};

// What a thread needs for a piece.
struct Space {
  std::vector<float> values, scaled, factor, back;
  std::vector<uint32_t> codes, largest;
  std::vector<uint8_t> bytes;

  void fit(int64_t elements, int64_t blocks) {
    grow(elements + kSlack, values, scaled, codes);
    grow(blocks + kSlack, factor, back, largest);
  }
};

class BlockCodes {
 public:
  explicit BlockCodes(const PackArgs& args)
      : args_(args),
        grid_(args.grid.joined()),
        format_(args.format),
        integers_(args.format + InBlock::kElement),
        codec_(integers_),
        decoder_(integers_),
        kernel_(kernels()),
        by_(*kernels().families.blocks) {}

  int64_t total_bits() const { return 8 * grid_.tiles() + codec_.bits() * grid_.count(); }

  // scale: of every block, or null: from the values. The first value without a code, or -1.
  int64_t pack(const float* x, const float* scale, uint8_t* codes) const {
    if (grid_.count() == 0) return -1;
    for_pieces([&](const Piece& p, Space&) {
      // Neighbours meet in these bytes.
      codes[p.bit / 8] = 0;
      codes[(p.bits_end - 1) / 8] = 0;
    });
    FirstWithoutCode refused;
    for_pieces([&](const Piece& p, Space& space) {
      const float* scales = scale == nullptr ? nullptr : scale + p.tile;
      const int64_t place = pack_piece(p, x, scales, codes, space);
      if (place >= 0) refused.add(place);
    });
    return refused.get();
  }

  void unpack(const uint8_t* codes, float* x) const {
    if (grid_.count() == 0) return;
    for_pieces([&](const Piece& p, Space& space) {
      const int64_t count = p.rows * p.cols, size = elements_of_block(p);
      read(p, codes, space);
      float* values = grid_.tall == 1 ? x + p.first : space.values.data();
      float* decoded = space.scaled.data();
      if (whole_bytes(p)) {
        decoder_.stream(space.bytes.data(), 0, count, decoded);
      } else {
        decoder_.words(space.codes.data(), count, decoded);
      }
      by_.multiply(decoded, count, size, space.factor.data(), nullptr, values);
      if (grid_.tall > 1)
        kernel_.transpose(values, p.rows, p.cols, p.rows, x + p.first, grid_.cols);
    });
  }

 private:
  int64_t elements_of_block(const Piece& p) const { return p.rows * grid_.wide; }

  template <class Body>
  void for_pieces(const Body& body) const {
    const int64_t size = grid_.tall * grid_.wide, blocks = std::max<int64_t>(1, kPiece / size);
    const int64_t across = grid_.across(), strips = (across + blocks - 1) / blocks;
    const int64_t grain = std::max<int64_t>(1, kGrain / (size * std::min(blocks, across)));
    const int threads = grid_.count() < 2 * kGrain ? 1 : args_.threads;
    parallel_ranges(grid_.outer * grid_.down() * strips, grain, threads,
                    [&](int64_t begin, int64_t end) {
                      Space space;
                      for (int64_t i = begin; i < end; ++i)
                        body(piece_of(i / strips, i % strips * blocks, blocks), space);
                    });
  }

  Piece piece_of(int64_t band, int64_t block, int64_t blocks) const {
    const int64_t down = grid_.down(), across = grid_.across();
    const int64_t row = band % down * grid_.tall, col = block * grid_.wide;
    Piece p;
    p.count = std::min(blocks, across - block);
    p.tile = band * across + block;
    p.rows = std::min(grid_.tall, grid_.rows - row);
    p.cols = std::min(p.count * grid_.wide, grid_.cols - col);
    const int64_t band_first = (band / down * grid_.rows + row) * grid_.cols;
    p.first = band_first + col;
    // Blocks before are whole in this band, and bands before are whole.
    p.bit = 8 * p.tile + codec_.bits() * (band_first + p.rows * col);
    p.bits_end = p.bit + 8 * p.count + codec_.bits() * p.rows * p.cols;
    return p;
  }

  // The values of the blocks, block after block.
  const float* gathered(const Piece& p, const float* x, Space& space) const {
    if (grid_.tall == 1) return x + p.first;
    kernel_.transpose(x + p.first, grid_.cols, p.rows, p.cols, space.values.data(), p.rows);
    return space.values.data();
  }

  int64_t place(const Piece& p, int64_t at) const {
    return grid_.tall == 1 ? p.first + at : p.first + at % p.rows * grid_.cols + at / p.rows;
  }

  // Codes of scales into space.largest.
  void find_scales(const Piece& p, const float* values, const float* scale, Space& space) const {
    const int64_t count = p.rows * p.cols;
    if (scale == nullptr) {
      by_.largest({reinterpret_cast<const uint32_t*>(values), count, 1, count},
                  elements_of_block(p), nullptr, space.largest.data());
    }
    for (int64_t i = 0; i < p.count; ++i) {
      const float a = scale == nullptr ? float_of_bits(space.largest[i]) : scale[i];
      const double s = !(a < HUGE_VALF)   ? static_cast<double>(NAN)
                       : scale != nullptr ? static_cast<double>(a)
                                          : exact_scale<double>(a, format_, 1.0, format_.target);
      const bool none = s != s;
      space.largest[i] = none ? kNanScale : static_cast<uint32_t>(log2_of(s) + kScaleBias);
      // A block of NaN has no code that a product gives.
      space.factor[i] = none ? NAN : scale != nullptr ? 1.0f : static_cast<float>(1 / s);
      space.back[i] = none ? NAN : scale != nullptr ? 1.0f : static_cast<float>(s);
    }
  }

  int64_t pack_piece(const Piece& p, const float* x, const float* scale, uint8_t* to,
                     Space& space) const {
    const int64_t count = p.rows * p.cols, size = elements_of_block(p);
    space.fit(count, p.count);
    const float* values = gathered(p, x, space);
    find_scales(p, values, scale, space);
    const int64_t padded = (count + kCodeLanes - 1) / kCodeLanes * kCodeLanes;
    float* scaled = space.scaled.data();
    bool exact = true;
    if (scale == nullptr) {
      exact = by_.multiply(values, count, size, space.factor.data(), space.back.data(), scaled);
    } else {
      std::copy(values, values + count, scaled);
    }
    std::fill(scaled + count, scaled + padded, 0.0f);
    const bool encoded =
        exact && kernel_.encode({integers_, padded}, scaled, space.codes.data()) == Coding::kAll;
    int64_t refused = -1;
    if (!encoded) refused = encode_slowly(p, values, scale != nullptr, space);
    if (refused < 0) write(p, to, space);
    return refused;
  }

  // Every kind of block and element; the row-major place of the first value without a code, or -1.
  int64_t encode_slowly(const Piece& p, const float* values, bool has_scale, Space& space) const {
    const int64_t count = p.rows * p.cols, size = elements_of_block(p);
    int64_t refused = INT64_MAX;
    for (int64_t block = 0; block < p.count; ++block) {
      const int64_t begin = block * size, end = std::min(begin + size, count);
      const bool none = space.largest[block] == kNanScale && !has_scale;
      const bool all_nan = none && std::all_of(values + begin, values + end,
                                               [](float value) { return value != value; });
      const double down = has_scale || none
                              ? 1.0
                              : power_of_two(kScaleBias - static_cast<int>(space.largest[block]));
      for (int64_t i = begin; i < end; ++i) {
        // A block with an infinity or NaN has codes only if it is NaN throughout.
        const bool refuse = none && !all_nan && !(std::fabs(values[i]) < HUGE_VALF);
        const uint32_t code = none ? 0 : codec_.encode(values[i] * down);
        if (refuse || code == kNoCode) refused = std::min(refused, place(p, i));
        space.codes[i] = code;
      }
    }
    return refused == INT64_MAX ? -1 : refused;
  }

  bool whole_bytes(const Piece& p) const {
    return p.bit % 8 == 0 && elements_of_block(p) * codec_.bits() % 8 == 0;
  }

  void write(const Piece& p, uint8_t* to, Space& space) const {
    const int64_t count = p.rows * p.cols, size = elements_of_block(p);
    const int bits = codec_.bits();
    if (whole_bytes(p)) {
      // The last block may end within a byte, which the next piece begins in.
      const int64_t in_bytes = p.bits_end % 8 == 0 ? p.count : p.count - 1;
      uint8_t* at = to + p.bit / 8;
      for (int64_t block = 0; block < in_bytes; ++block) {
        const int64_t begin = block * size, n = std::min(size, count - begin);
        *at++ = static_cast<uint8_t>(space.largest[block]);
        write_span(kernel_, space.codes.data() + begin, n, bits, at);
        at += n * bits / 8;
      }
      if (in_bytes == p.count) return;
      return write_bits(p, in_bytes, static_cast<int64_t>(at - to) * 8, to, space);
    }
    write_bits(p, 0, p.bit, to, space);
  }

  // Blocks from number `from` on, from any bit on.
  void write_bits(const Piece& p, int64_t from, int64_t bit, uint8_t* to, Space& space) const {
    const int64_t count = p.rows * p.cols, size = elements_of_block(p);
    const int64_t bytes = (p.bits_end + 7) / 8 - bit / 8;
    grow(bytes, space.bytes);
    BitWriter writer(space.bytes.data());
    writer.put(0, static_cast<int>(bit % 8));
    for (int64_t block = from; block < p.count; ++block) {
      writer.put(space.largest[block], 8);
      const int64_t end = std::min((block + 1) * size, count);
      for (int64_t i = block * size; i < end; ++i) writer.put(space.codes[i], codec_.bits());
    }
    writer.flush();
    uint8_t* first = to + bit / 8;
    if (from > 0 && bytes > 1) {
      *first = space.bytes[0];
    } else {
      __atomic_fetch_or(first, space.bytes[0], __ATOMIC_RELAXED);
      if (bytes == 1) return;
    }
    std::copy(space.bytes.begin() + 1, space.bytes.begin() + bytes - 1, first + 1);
    __atomic_fetch_or(first + bytes - 1, space.bytes[bytes - 1], __ATOMIC_RELAXED);
  }

  // The scales as factors, and the codes of elements: the bytes of one block after those of
  // another, or words.
  void read(const Piece& p, const uint8_t* from, Space& space) const {
    const int64_t count = p.rows * p.cols, size = elements_of_block(p);
    const int bits = codec_.bits();
    space.fit(count, p.count);
    if (whole_bytes(p)) {
      const int64_t bytes = size * bits / 8, end = (count * bits + 7) / 8;
      grow(end, space.bytes);
      from += p.bit / 8;
      for (int64_t block = 0; block < p.count; ++block, from += 1 + bytes) {
        space.factor[block] = scale_of_byte(*from);
        const int64_t at = block * bytes;
        std::memcpy(space.bytes.data() + at, from + 1, std::min(bytes, end - at));
      }
      return;
    }
    BitReader reader(from + p.bit / 8);
    if (p.bit % 8 != 0) reader.get(static_cast<int>(p.bit % 8));
    for (int64_t block = 0; block < p.count; ++block) {
      space.factor[block] = scale_of_byte(reader.get(8));
      const int64_t end = std::min((block + 1) * size, count);
      for (int64_t i = block * size; i < end; ++i) space.codes[i] = reader.get(bits);
    }
  }

  const PackArgs& args_;
  const Grid grid_;
  const BlockFormat format_;
  const int64_t* integers_;
  const Codec codec_;
  const Decoder decoder_;
  const Kernels& kernel_;
  const BlockKernels& by_;
};

}  // namespace

int64_t packed_block_bytes(const PackArgs& args) { return (BlockCodes(args).total_bits() + 7) / 8; }

int64_t pack_blocks(const PackArgs& args, const float* x, const float* scale, uint8_t* codes) {
  const FloatEnvironment environment;
  return BlockCodes(args).pack(x, scale, codes);
}

void unpack_blocks(const PackArgs& args, const uint8_t* codes, float* x) {
  const FloatEnvironment environment;
  BlockCodes(args).unpack(codes, x);
}

}  // namespace lpk
