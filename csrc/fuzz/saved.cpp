// lpk_saved FILE: computes the inputs of FILE, one line of hexadecimal digits each, as lpk_fuzz
// does, without libFuzzer. LPKERNELS_ISA chooses the kernels. Exit status 0: all results are right;
// 2: FILE holds no input; 77: this processor cannot run the kernels asked for. A wrong result ends
// it with a signal.
#include <fstream>
#include <stdexcept>

#include "cases.h"
#include "cpu/drivers/tile.h"

int main(int argc, char** argv) {
  try {
    std::printf("kernels: %s\n", lpk::kernels().isa);
  } catch (const std::invalid_argument& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  std::ifstream file(argc == 2 ? argv[1] : "");
  std::string line;
  long inputs = 0;
  for (; std::getline(file, line); ++inputs) {
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    lpk_fuzz::run(bytes.data(), bytes.size());
  }
  std::printf("%ld inputs, %lld results compared\n", inputs,
              static_cast<long long>(lpk_fuzz::counts.passed));
  return inputs > 0 ? 0 : 2;
}
