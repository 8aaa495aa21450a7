// CMakeLists.txt runs this while it configures: it prints the best instruction set of the
// processor.
#include <cstdio>

#include "processor.h"

int main() {
  std::puts(lpk::sets_of_processor().back());
  return 0;
}
