// lpk_fuzz: libFuzzer makes bytes, these bytes choose what is computed (input.h), and every result
// is compared with plain loops (cases.h). The program is built with AddressSanitizer and UBSan;
// LPKERNELS_ISA chooses the kernels. lpk_fuzz -help=1 lists libFuzzer's options.
#include "cases.h"

extern "C" int LLVMFuzzerRunDriver(int* count, char*** arguments,
                                   int (*run)(const uint8_t*, size_t));

int main(int count, char** arguments) {
  return LLVMFuzzerRunDriver(&count, &arguments, lpk_fuzz::run);
}
