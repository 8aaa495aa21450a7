// Writes one kind of stream of the generators to stdout until the reader closes it: raw material
// for batteries of statistical tests. The words are those of csrc/common/rng.h, in the order in
// which the kind's name says; the number of bytes goes to stderr at the end.
//
//   g++ -O2 -std=c++17 -I csrc bench/rng/stream.cpp -o build/rng_stream
//   build/rng_stream matrix_kmn fast 1 | dieharder -g 200 -d 0

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/rng.h"

namespace {

constexpr uint64_t kOneRow = 3, kOneCol = 5;  // an output like any other
constexpr uint64_t kTileRows = 512, kTileCols = 512;
constexpr uint64_t kTileWords = 256;  // K = 1024 draws of 8 bits
constexpr uint64_t kRoles = 12;

struct Source {
  lpk::Rng rng;
  uint64_t seed;

  uint32_t word(uint64_t row, uint64_t col, uint64_t w, uint32_t site = lpk::kSiteSum) const {
    return lpk::random_word(rng, seed, site, row, col, w);
  }

  uint32_t of_seed(uint64_t s, uint64_t row, uint64_t col, uint64_t w) const {
    return lpk::random_word(rng, s, lpk::kSiteSum, row, col, w);
  }

  // Four draws of 8 bits that follow one another in the order (k, m, n).
  uint32_t draws_kmn(uint64_t i) const {
    const uint64_t k = 4 * i / (kTileRows * kTileCols);
    const uint64_t row = 4 * i / kTileCols % kTileRows;
    const uint64_t col = 4 * i % kTileCols;
    uint32_t four = 0;
    for (uint64_t c = 0; c < 4; ++c)
      four |= lpk::random_draw(rng, seed, lpk::kSiteSum, row, col + c, k, 8) << (8 * c);
    return four;
  }
};

// Word i of a stream. Bytes leave least significant first, as draws are taken from a word.
using Kind = uint32_t (*)(const Source&, uint64_t);

struct Named {
  const char* name;
  Kind at;
};

const Named kKinds[] = {
    // One output: word after word along k.
    {"along_k", [](const Source& s, uint64_t i) { return s.word(kOneRow, kOneCol, i); }},
    // One position k of one row across columns, and of one column across rows.
    {"columns", [](const Source& s, uint64_t i) { return s.word(kOneRow, i, 7); }},
    {"rows", [](const Source& s, uint64_t i) { return s.word(i, kOneCol, 7); }},
    // The first word of calls with consecutive seeds, from `seed` on.
    {"seeds", [](const Source& s, uint64_t i) { return s.of_seed(s.seed + i, 0, 0, 0); }},
    // The same for every role of a layer's call.
    {"roles",
     [](const Source& s, uint64_t i) {
       return s.of_seed(lpk::derive_seed(s.seed + i / kRoles, i % kRoles), 0, 0, 0);
     }},
    // Elementwise rounding: row = col = 0 and the word index runs.
    {"quantize", [](const Source& s, uint64_t i) { return s.word(0, 0, i, lpk::kSiteQuantize); }},
    // All words of a product, outputs row by row, each along k; rows go on for ever.
    {"matrix_mnk",
     [](const Source& s, uint64_t i) {
       return s.word(i / (kTileWords * kTileCols), i / kTileWords % kTileCols, i % kTileWords);
     }},
    // All 8-bit draws of a product of 512 x 512 outputs, step k after step k.
    {"matrix_kmn", [](const Source& s, uint64_t i) { return s.draws_kmn(i); }},
};

int usage() {
  std::fprintf(stderr, "usage: rng_stream KIND fast|philox SEED [WORDS]; KIND is one of");
  for (const Named& kind : kKinds) std::fprintf(stderr, " %s", kind.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return usage();
  const std::string rng = argv[2];
  if (rng != "fast" && rng != "philox") return usage();
  const Source source{rng == "fast" ? lpk::Rng::kFast : lpk::Rng::kPhilox,
                      std::strtoull(argv[3], nullptr, 0)};
  const uint64_t end = argc > 4 ? std::strtoull(argv[4], nullptr, 0) : ~uint64_t{0};
  std::signal(SIGPIPE, SIG_IGN);
  for (const Named& kind : kKinds) {
    if (kind.name != std::string(argv[1])) continue;
    std::vector<uint32_t> block(1 << 14);
    uint64_t i = 0;
    while (i < end) {
      size_t count = 0;
      while (count < block.size() && i + count < end) {
        block[count] = kind.at(source, i + count);
        ++count;
      }
      const size_t written = std::fwrite(block.data(), sizeof(uint32_t), count, stdout);
      i += written;
      if (written < count) break;
    }
    std::fprintf(stderr, "%s %s seed %s: %llu bytes\n", argv[1], argv[2], argv[3],
                 static_cast<unsigned long long>(i * sizeof(uint32_t)));
    return 0;
  }
  return usage();
}
