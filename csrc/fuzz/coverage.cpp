// GCC calls __sanitizer_cov_trace_pc at the head of every basic block
// (-fsanitize-coverage=trace-pc), and the linker turns the call into one of the function below
// (--wrap). libFuzzer reads counters that other compilers increment in place. Here the place of the
// call chooses one of kCounters counters.
#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t kCounters = size_t{1} << 17;
alignas(64) uint8_t counters[kCounters];

}  // namespace

extern "C" {

void __sanitizer_cov_8bit_counters_init(uint8_t* first, uint8_t* last);

__attribute__((no_sanitize("address", "undefined"))) void __wrap___sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  ++counters[(place >> 2 ^ place >> 19) % kCounters];
}

// GCC calls these for comparisons of floats, which libFuzzer makes nothing of.
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}

}  // extern "C"

namespace {

[[maybe_unused]] const bool kRegistered =
    (__sanitizer_cov_8bit_counters_init(counters, counters + kCounters), true);

}  // namespace
