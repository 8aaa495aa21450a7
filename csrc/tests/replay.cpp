// lpk_replay FOLDER: makes the calls of lpkernels._C again that FOLDER/calls.bin holds, and
// compares what they return and write with the bytes beside them. tests/support/replay.py writes
// that file and says how it is laid out. Here is no Python: a processor without one can make the
// calls. LPKERNELS_ISA chooses the kernels. Exit status 0: all bits are equal; 1: some differ; 2:
// the file cannot be read; 77: this processor cannot run the kernels asked for.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cpu/drivers/tile.h"
#include "module/elementwise.h"
#include "module/products.h"
#include "module/update.h"

namespace {

using Bytes = std::string_view;
using Numbers = std::vector<int64_t>;

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

// Memory of a call, aligned as torch's own.
class Piece {
 public:
  Piece(Bytes before, Bytes after) : data_(new (kAlignment) char[before.size()]), after_(after) {
    if (before.size() != after.size()) refuse("a piece of memory changed its size");
    std::memcpy(data_.get(), before.data(), before.size());
  }

  uintptr_t address(uint64_t offset) const {
    if (offset >= after_.size()) refuse("an address lies behind its memory");
    return reinterpret_cast<uintptr_t>(data_.get() + offset);
  }

  // The first byte that is not as recorded, or as many as there are.
  size_t same() const {
    size_t i = 0;
    while (i < after_.size() && data_[i] == after_[i]) ++i;
    return i;
  }
  size_t size() const { return after_.size(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(char* data) const { operator delete[](data, kAlignment); }
  };

  std::unique_ptr<char[], Delete> data_;
  Bytes after_;
};

class Recording {
 public:
  explicit Recording(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) refuse("no such file");
    content_.assign(std::istreambuf_iterator<char>(file), {});
  }

  Bytes bytes(uint64_t count) {
    if (count > content_.size() - at_) refuse("it ends too early");
    at_ += count;
    return Bytes(content_).substr(at_ - count, count);
  }

  template <class T>
  T plain() {
    T x;
    std::memcpy(&x, bytes(sizeof x).data(), sizeof x);
    return x;
  }
  char tag() { return plain<char>(); }
  Bytes text() { return bytes(plain<uint64_t>()); }

  void add_block() { blocks_.push_back(text()); }

  std::vector<Piece> pieces() {
    std::vector<Piece> pieces;
    for (auto left = plain<uint64_t>(); left > 0; --left) {
      const Bytes before = block(), after = block();
      pieces.emplace_back(before, after);
    }
    return pieces;
  }

  // The next value as an argument of type T, its addresses in these pieces.
  template <class T>
  T value(const std::vector<Piece>& pieces) {
    const char kind = tag();
    if constexpr (std::is_same_v<T, std::string>) {
      if (kind == 's') return std::string(text());
    } else if constexpr (std::is_same_v<T, uintptr_t>) {
      if (kind == 'p') return address(pieces);
      if (kind == 'i' && plain<int64_t>() == 0) return 0;
    } else if constexpr (std::is_arithmetic_v<T>) {
      if (kind == 'd') return static_cast<T>(plain<double>());
      if (kind == 'i') return static_cast<T>(plain<int64_t>());
      if (kind == 'p') return static_cast<T>(address(pieces));
    } else if (kind == 'l') {
      T list;
      const auto count = plain<uint64_t>();
      list.resize(count);
      if (list.size() != count) refuse("a list is too long");
      for (size_t i = 0; i < count; ++i) list[i] = value<std::decay_t<decltype(list[i])>>(pieces);
      return list;
    }
    refuse(std::string("an argument is recorded as '") + kind +
           "', which its function cannot take");
  }

 private:
  Bytes block() {
    const auto number = plain<uint64_t>();
    if (number >= blocks_.size()) refuse("a block is missing");
    return blocks_[number];
  }

  uintptr_t address(const std::vector<Piece>& pieces) {
    const auto number = plain<uint64_t>(), offset = plain<uint64_t>();
    if (number >= pieces.size()) refuse("a piece of memory is missing");
    return pieces[number].address(offset);
  }

  std::string content_;
  size_t at_ = 0;
  std::vector<Bytes> blocks_;
};

// Reads a function's arguments, calls it, and gives its result as a list.
using Caller = std::function<Numbers(Recording&, const std::vector<Piece>&)>;

template <class Result, class... Arguments>
Caller caller(Result (*function)(Arguments...)) {
  return [function](Recording& from, const std::vector<Piece>& pieces) -> Numbers {
    // Braces read the arguments in their order.
    const std::tuple<std::decay_t<Arguments>...> arguments{
        from.value<std::decay_t<Arguments>>(pieces)...};
    if constexpr (std::is_void_v<Result>) {
      std::apply(function, arguments);
      return {};
    } else if constexpr (std::is_integral_v<Result>) {
      return {std::apply(function, arguments)};
    } else {
      return std::apply(function, arguments);
    }
  };
}

std::map<std::string, Caller> all_functions() {
  std::map<std::string, Caller> functions;
  const auto define = [&](const char* name, auto function) { functions[name] = caller(function); };
  lpk::bound::define_elementwise(define);
  lpk::bound::define_products(define);
  lpk::bound::define_update(define);
  return functions;
}

// How the next call differs from what was recorded; "" if it does not.
std::string difference(Recording& from, const Caller& call) {
  const std::vector<Piece> pieces = from.pieces();
  const Numbers result = call(from, pieces);
  if (result != from.value<Numbers>(pieces)) return "returns other numbers";
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t same = pieces[i].same(), size = pieces[i].size();
    if (same != size) {
      return "differs from byte " + std::to_string(same) + " of " + std::to_string(size) +
             " on in tensor " + std::to_string(i);
    }
  }
  return "";
}

int replay(Recording& from) {
  const std::map<std::string, Caller> functions = all_functions();
  std::string line = "no line";
  long lines = 0, calls = 0, differing = 0;
  for (char kind = from.tag(); kind != 'e'; kind = from.tag()) {
    if (kind == 'b') {
      from.add_block();
    } else if (kind == 'l') {
      line = from.text();
      ++lines;
    } else if (kind == 'c') {
      const std::string name(from.text());
      const auto entry = functions.find(name);
      if (entry == functions.end()) refuse("there is no function " + name);
      const std::string how = difference(from, entry->second);
      ++calls;
      if (how.empty()) continue;
      ++differing;
      std::printf("call %ld, %s, %s: %s\n", calls, name.c_str(), how.c_str(), line.c_str());
    } else {
      refuse(std::string("'") + kind + "' begins no entry");
    }
  }
  std::printf("%ld calls of %ld lines, %ld differ\n", calls, lines, differing);
  return differing == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::printf("lpk_replay FOLDER; `python -m tests.support.replay --record FOLDER` fills it\n");
    return 2;
  }
  try {
    std::printf("kernels: %s\n", lpk::kernels().isa);
  } catch (const std::invalid_argument& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  const std::string path = std::string(argv[1]) + "/calls.bin";
  try {
    Recording from(path);
    return replay(from);
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", path.c_str(), error.what());
    return 2;
  }
}
