// CHECK(condition) and CHECK_SAME(got, want, where) are counted. A failure is reported with file,
// line and values, and the run goes on.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace lpk_fuzz {

struct Counts {
  int64_t passed = 0;
  int64_t failed = 0;
};

inline Counts counts;

// How many failures are printed of a broken rule that fails everywhere.
constexpr int64_t kReports = 20;

inline void report(const char* file, int line, const std::string& message) {
  if (++counts.failed > kReports) return;
  std::printf("%s:%d: %s\n", file, line, message.c_str());
}

template <class... Values>
std::string text(const char* format, Values... values) {
  char line[240];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

inline std::string shown(double x) { return text("%.17g (%a)", x, x); }
inline std::string shown(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return text("%.9g (0x%08x)", static_cast<double>(x), bits);
}
template <class Integer>
std::string shown(Integer x) {
  return text("%lld (0x%llx)", static_cast<long long>(x), static_cast<unsigned long long>(x));
}

// Doubles are intermediate values: any NaN is as good as another. Everything else is compared by
// its bits.
inline bool same(double a, double b) {
  return (a != a && b != b) || (a == b && std::signbit(a) == std::signbit(b));
}
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace lpk_fuzz

// `where`, a std::string, is evaluated only on failure.
#define CHECK_SAME(got, want, where)                                                            \
  do {                                                                                          \
    const auto got_ = (got);                                                                    \
    const auto want_ = (want);                                                                  \
    if (::lpk_fuzz::same(got_, want_)) {                                                        \
      ++::lpk_fuzz::counts.passed;                                                              \
    } else {                                                                                    \
      ::lpk_fuzz::report(__FILE__, __LINE__,                                                    \
                         (where) + ": " #got " is " + ::lpk_fuzz::shown(got_) + ", expected " + \
                             ::lpk_fuzz::shown(want_));                                         \
    }                                                                                           \
  } while (0)
