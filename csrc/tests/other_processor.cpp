// A processor with fewer instructions than this one has, for a process and its threads. When this
// is preloaded, it makes CPUID trap (Linux, on processors that can) and answers in the processor's
// stead. LPK_PROCESSOR chooses the processor:
//
//   avx2    has neither AVX-512 nor any later instructions
//   avx512  has AVX-512 without its half precision, as AMD's since Zen 4 and Intel's before 2023
//
// A program that runs nevertheless asks the processor, and asks the right thing. This does not show
// that the program runs no other instruction. Exit status 77: CPUID cannot be made to trap here.
// torch's compiler would take code of one processor for another: set TORCHINDUCTOR_CACHE_DIR.
#include <cpuid.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// <asm/prctl.h> of Linux 4.12 has this number.
constexpr int kSetCpuid = 0x1012;
constexpr int kSkipped = 77;

bool lets_cpuid_run(bool run) { return syscall(SYS_arch_prctl, kSetCpuid, run ? 1ul : 0ul) == 0; }

struct Answer {
  uint32_t a, b, c, d;
};

// Bits of CPUID's leaf 7: AVX512F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG,
// VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT; half precision; tiles (AMX).
constexpr uint32_t kAvx512InB =
    1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr uint32_t kAvx512InC = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
constexpr uint32_t kAvx512InD = 1u << 2 | 1u << 3 | 1u << 8;
constexpr uint32_t kHalfPrecisionInD = 1u << 23;
constexpr uint32_t kTilesInD = 1u << 22 | 1u << 24 | 1u << 25;

bool has_avx512;

Answer answer_to(uint32_t leaf, uint32_t subleaf) {
  Answer is{};
  __cpuid_count(leaf, subleaf, is.a, is.b, is.c, is.d);
  if (leaf == 7 && subleaf == 0) {
    is.d &= ~(kHalfPrecisionInD | kTilesInD);
    if (!has_avx512) is.b &= ~kAvx512InB, is.c &= ~kAvx512InC, is.d &= ~kAvx512InD;
  } else if (leaf == 7) {
    // The other subleaves have AVX-VNNI, AVX512-BF16 and what came after them.
    is = Answer{};
  }
  return is;
}

using Sigaction = int(int, const struct sigaction*, struct sigaction*);
Sigaction& of_system() {
  static const auto original = reinterpret_cast<Sigaction*>(dlsym(RTLD_NEXT, "sigaction"));
  return *original;
}

// The program's own handler, for a fault that is no trap of CPUID.
struct sigaction of_program{};
bool traps = false;

void fault() {
  // The fault happens again, and is then the program's.
  of_system()(SIGSEGV, &of_program, nullptr);
  traps = false;
}

void answer(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  constexpr uint8_t kCpuid[] = {0x0f, 0xa2};
  if (std::memcmp(code, kCpuid, sizeof kCpuid) != 0) return fault();
  lets_cpuid_run(true);
  const Answer is = answer_to(static_cast<uint32_t>(registers[REG_RAX]),
                              static_cast<uint32_t>(registers[REG_RCX]));
  lets_cpuid_run(false);
  registers[REG_RAX] = is.a;
  registers[REG_RBX] = is.b;
  registers[REG_RCX] = is.c;
  registers[REG_RDX] = is.d;
  registers[REG_RIP] += sizeof kCpuid;
}

__attribute__((constructor)) void begin() {
  const char* processor = std::getenv("LPK_PROCESSOR");
  if (processor == nullptr) return;
  has_avx512 = std::strcmp(processor, "avx512") == 0;
  struct sigaction action{};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  traps = of_system()(SIGSEGV, &action, &of_program) == 0 && lets_cpuid_run(false);
  if (traps) return;
  std::fprintf(stderr, "CPUID cannot be made to trap here\n");
  std::_Exit(kSkipped);
}

}  // namespace

// Python's faulthandler and compilers, for two, take the signal for themselves. The trap stays, and
// faults go to their handlers.
extern "C" int sigaction(int number, const struct sigaction* now, struct sigaction* before) {
  if (number != SIGSEGV || !traps) return of_system()(number, now, before);
  if (before != nullptr) *before = of_program;
  if (now != nullptr) of_program = *now;
  return 0;
}

extern "C" sighandler_t signal(int number, sighandler_t handler) noexcept {
  struct sigaction now{}, before{};
  now.sa_handler = handler;
  now.sa_flags = SA_RESTART;
  return sigaction(number, &now, &before) == 0 ? before.sa_handler : SIG_ERR;
}
