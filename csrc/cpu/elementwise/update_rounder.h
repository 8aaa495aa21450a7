// The rounding of spans of float32 values, chosen once for a piece of a tensor: the rules of
// quantize_kernel.h, with their constants made beforehand.
#pragma once

#include <new>

#include "quantize_kernel.h"
#include "update.h"

namespace lpk {
namespace {

// The facts that the rounding of a piece needs.
inline ElementBlock block_of(const UpdatePiece& piece, int place) {
  const int64_t* quantizer = piece.args->quantizer(place);
  ElementBlock job{};
  job.format = quantizer;
  job.rounding = quantizer[kFormatInts];
  job.random_bits = quantizer[kFormatInts + 1];
  job.rng = quantizer[kFormatInts + 2];
  job.seed = piece.seed(place);
  job.site = kSiteQuantize;
  job.index = static_cast<uint64_t>(piece.place(piece.begin));
  return job;
}

template <class V>
class Rounder {
 public:
  Rounder() = default;
  Rounder(const UpdatePiece& piece, int place) {
    if (!piece.args->rounds(place)) return;
    const ElementBlock job = block_of(piece, place);
    const Format f = number_format(job.format);
    if (WordFormat(f).evenly_spaced) {
      choose<false>(job, f);
    } else {
      choose<true>(job, f);
    }
  }

  bool rounds() const { return run_ != nullptr; }
  // Rounds values where they lie. index: the first value's; a new random word begins there.
  void operator()(uint32_t* x, int64_t count, int64_t index) const {
    run_(*this, x, count, static_cast<uint64_t>(index));
  }

 private:
  template <bool kSmall>
  void choose(const ElementBlock& job, const Format& f) {
    switch (static_cast<Rounding>(job.rounding)) {
      case Rounding::kNearestEven:
        if (NearestRule<V>::fits(f)) return set<NearestRule<V>, WithoutDraws<V>, 1>(job, f);
        return plain<Rounding::kNearestEven, kSmall>(job, f);
      case Rounding::kNearestAway:
        return plain<Rounding::kNearestAway, kSmall>(job, f);
      case Rounding::kTowardZero:
        return plain<Rounding::kTowardZero, kSmall>(job, f);
      case Rounding::kTowardPositive:
        return plain<Rounding::kTowardPositive, kSmall>(job, f);
      case Rounding::kTowardNegative:
        return plain<Rounding::kTowardNegative, kSmall>(job, f);
      case Rounding::kToOdd:
        return plain<Rounding::kToOdd, kSmall>(job, f);
      case Rounding::kStochastic:
        return stochastic<kSmall>(job, f);
    }
  }

  template <Rounding kMode, bool kSmall>
  void plain(const ElementBlock& job, const Format& f) {
    set<WordRule<V, kMode, kSmall>, WithoutDraws<V>, 1>(job, f);
  }

  template <bool kSmall>
  void stochastic(const ElementBlock& job, const Format& f) {
    using Rule = WordRule<V, Rounding::kStochastic, kSmall>;
    switch (draw_layout(static_cast<int>(job.random_bits)).per_word_log2) {
      case 0:
        return set<Rule, WordDraws<V, 1>, 1>(job, f);
      case 1:
        return set<Rule, WordDraws<V, 2>, 2>(job, f);
      default:
        return set<Rule, WordDraws<V, 4>, 4>(job, f);
    }
  }

  template <class Rule, class Draws, int kPerWord>
  void set(const ElementBlock& job, const Format& f) {
    static_assert(sizeof(Rule) <= sizeof rule_ && sizeof(Draws) <= sizeof draws_);
    static_assert(alignof(Rule) <= 64 && alignof(Draws) <= 64);
    new (rule_) Rule(f, static_cast<int>(job.random_bits));
    new (draws_) Draws(job);
    run_ = [](const Rounder& self, uint32_t* x, int64_t count, uint64_t index) {
      round_words<V, Rule, Draws, kPerWord, false>(
          x, x, count, *std::launder(reinterpret_cast<const Rule*>(self.rule_)),
          *std::launder(reinterpret_cast<const Draws*>(self.draws_)), index, false);
    };
  }

  alignas(64) unsigned char rule_[128];
  alignas(64) unsigned char draws_[704];
  void (*run_)(const Rounder&, uint32_t*, int64_t, uint64_t) = nullptr;
};

}  // namespace
}  // namespace lpk
