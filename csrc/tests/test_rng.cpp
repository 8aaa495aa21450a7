// common/rng.h against the pinned vectors of tests/rng_vectors.json, which the Python tests read
// too. The file has one record a line.
#include <fstream>

#include "check.h"
#include "common/rng.h"
#include "groups.h"

namespace lpk_test {
namespace {

using Hex = unsigned long long;

struct Seen {
  int words = 0;
  int draws = 0;
  int seeds = 0;
};

lpk::Rng generator(const char* name) {
  CHECK(std::strcmp(name, "fast") == 0 || std::strcmp(name, "philox") == 0);
  return std::strcmp(name, "philox") == 0 ? lpk::Rng::kPhilox : lpk::Rng::kFast;
}

void check_line(const std::string& line, Seen& seen) {
  char rng[16];
  Hex seed, row, col, at, value;
  unsigned site, role;
  int bits;
  const char* from = line.c_str();
  if (std::sscanf(from,
                  " {\"rng\": \"%15[a-z]\", \"seed\": \"%llx\", \"site\": %u, \"row\": \"%llx\", "
                  "\"col\": \"%llx\", \"word\": \"%llx\", \"value\": \"%llx\"}",
                  rng, &seed, &site, &row, &col, &at, &value) == 7) {
    ++seen.words;
    CHECK_SAME(lpk::random_word(generator(rng), seed, site, row, col, at),
               static_cast<uint32_t>(value), line);
  } else if (std::sscanf(from,
                         " {\"rng\": \"%15[a-z]\", \"seed\": \"%llx\", \"site\": %u, \"row\": "
                         "\"%llx\", \"col\": \"%llx\", \"k\": \"%llx\", \"random_bits\": %d, "
                         "\"value\": \"%llx\"}",
                         rng, &seed, &site, &row, &col, &at, &bits, &value) == 8) {
    ++seen.draws;
    CHECK_SAME(lpk::random_draw(generator(rng), seed, site, row, col, at, bits),
               static_cast<uint32_t>(value), line);
  } else if (std::sscanf(from, " {\"seed\": \"%llx\", \"role\": %u, \"value\": \"%llx\"}", &seed,
                         &role, &value) == 3) {
    ++seen.seeds;
    CHECK_SAME(lpk::derive_seed(seed, role), static_cast<uint64_t>(value), line);
  } else {
    // Only the lines that open and close the lists hold no record.
    CHECK(line.find("value") == std::string::npos);
  }
}

// Philox4x32-10's known answers from Random123 (Salmon et al. 2011): zeros, ones, digits of pi.
void check_philox() {
  struct Known {
    uint32_t counter[4], key[2], word[4];
  };
  const Known known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Known& k : known) {
    const lpk::PhiloxBlock block =
        lpk::philox(k.counter[0], k.counter[1], k.counter[2], k.counter[3], k.key[0], k.key[1]);
    for (int i = 0; i < 4; ++i) CHECK_SAME(block.word[i], k.word[i], text("philox word %d", i));
  }
}

}  // namespace

void test_rng() {
  check_philox();
  std::ifstream file(LPK_RNG_VECTORS);
  Seen seen;
  for (std::string line; std::getline(file, line);) check_line(line, seen);
  // A file that is missing, or written another way, must not pass for one that agrees.
  CHECK(seen.words >= 20 && seen.draws >= 16 && seen.seeds >= 12);
}

}  // namespace lpk_test
