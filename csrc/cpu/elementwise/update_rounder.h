// The rounding of spans of float32 values, chosen once for a piece of a tensor: the rules of
// quantize_kernel.h, with their constants made beforehand.
#pragma once

#include <new>

#include "quantize_kernel.h"
#include "update.h"

namespace lpk {
namespace {

template <class V>
class SpanRounder {
 public:
  SpanRounder(const UpdatePiece& piece, int place) {
    if (!piece.args->rounds(place)) return;
    ElementBlock job{};
    static_cast<ElementRounding&>(job) = piece.rounding(place);
    job.index = static_cast<uint64_t>(piece.place(piece.begin));
    run_format<V>(job, Choice{this});
  }

  bool rounds() const { return run_ != nullptr; }
  // Rounds values where they lie. index: the first value's; a new random word begins there.
  void operator()(uint32_t* x, int64_t count, int64_t index) const {
    run_(*this, x, count, static_cast<uint64_t>(index));
  }

 private:
  // Keeps the rule that run_format chooses.
  struct Choice {
    SpanRounder* of;

    template <class Rule, class Draws, int kPerWord>
    void run(const ElementBlock& job, const Rule& rule) const {
      static_assert(sizeof(Rule) <= sizeof rule_ && sizeof(Draws) <= sizeof draws_);
      static_assert(alignof(Rule) <= 64 && alignof(Draws) <= 64);
      new (of->rule_) Rule(rule);
      new (of->draws_) Draws(job);
      of->run_ = [](const SpanRounder& self, uint32_t* x, int64_t count, uint64_t index) {
        round_words<V, Rule, Draws, kPerWord, false>(
            x, x, count, *std::launder(reinterpret_cast<const Rule*>(self.rule_)),
            *std::launder(reinterpret_cast<const Draws*>(self.draws_)), index, false);
      };
    }
  };

  alignas(64) unsigned char rule_[128];
  alignas(64) unsigned char draws_[704];
  void (*run_)(const SpanRounder&, uint32_t*, int64_t, uint64_t) = nullptr;
};

}  // namespace
}  // namespace lpk
