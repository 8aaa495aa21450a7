// An optimizer's step of one element, SGD's and Adam's: the rule of
// lpkernels/reference/updates.py, which says every operation and their order.
//
// The step is a template over F: a float, or a vector of floats
// (csrc/cpu/elementwise/update_spans.h). Nothing may be contracted or re-associated.
#pragma once

#include "codes.h"

namespace lpk {

constexpr int kUpdateNumbers = 8;
// A rounding is given by its key, by whether there is a rounding, and by the twelve integers of its
// quantizer.
constexpr int kRoundingInts = 14;
// Gradient, master, both states, working copy.
enum : int { kGrad = 0, kMaster = 1, kFirst = 2, kSecond = 3, kWeight = 4, kPlaces = 5 };

// The options of an optimizer, as lpkernels/arithmetic/updates.py gives them.
struct UpdateOptions {
  bool adam;
  double lr, weight_decay;
  double first, second;  // momentum and dampening, or the betas
  double eps;
  bool maximize;
  bool way;  // nesterov, or decoupled weight decay

  LPK_HD int states() const { return adam ? 2 : first != 0 ? 1 : 0; }
};

inline UpdateOptions update_options(const double* numbers) {
  return {numbers[0] != 0, numbers[1], numbers[2],      numbers[3],
          numbers[4],      numbers[5], numbers[6] != 0, numbers[7] != 0};
}

// base^exponent by squaring: products alone, which round alike everywhere.
LPK_HD double power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = result * base;
    base = base * base;
  }
  return result;
}

// The options of one step, each rounded to float32 once.
struct StepConstants {
  bool adam, maximize, way, begins;
  bool has_decay, has_state;
  float decay;       // weight's share in the gradient; AdamW: the share of the weight left
  float first;       // momentum; 1 - beta1
  float first_less;  // 1 - dampening; Adam: first - 1, to use if near_one
  bool near_one;
  float second, second_weight;  // beta2, 1 - beta2
  float eps;
  float size;  // of the step, negative
  float root;  // 1 / sqrt(1 - beta2^t)
};

// number: the number of this step, counted from 1.
LPK_HD StepConstants step_constants(const UpdateOptions& o, bool begins, int64_t number) {
  StepConstants c{};
  c.adam = o.adam;
  c.maximize = o.maximize;
  c.way = o.way;
  c.begins = begins;
  c.has_decay = o.weight_decay != 0;
  c.has_state = o.states() > 0;
  c.decay = static_cast<float>(o.weight_decay);
  c.eps = static_cast<float>(o.eps);
  if (!o.adam) {
    c.first = static_cast<float>(o.first);
    c.first_less = static_cast<float>(1.0 - o.second);
    c.size = static_cast<float>(-o.lr);
    return c;
  }
  if (o.way) c.decay = static_cast<float>(1.0 - o.lr * o.weight_decay);
  c.first = static_cast<float>(1.0 - o.first);
  c.first_less = c.first - 1.0f;
  c.near_one = !(c.first < 0.5f);
  c.second = static_cast<float>(o.second);
  c.second_weight = static_cast<float>(1.0 - o.second);
  c.size = static_cast<float>(-(o.lr / (1.0 - power(o.first, number))));
  c.root = static_cast<float>(1.0 / sqrt(1.0 - power(o.second, number)));
  return c;
}

template <class F>
struct SquareRoot;
template <>
struct SquareRoot<float> {
  LPK_HD static float of(float x) { return sqrtf(x); }
};

// Moves the weight and the states one step on; g is unscaled and rounded.
template <class F>
LPK_HD void sgd_step(const StepConstants& c, F g, F& w, F& buffer) {
  if (c.maximize) g = -g;
  if (c.has_decay) g = g + w * c.decay;
  if (c.has_state) {
    buffer = c.begins ? g : buffer * c.first + g * c.first_less;
    g = c.way ? g + buffer * c.first : buffer;
  }
  w = w + g * c.size;
}

template <class F>
LPK_HD void adam_step(const StepConstants& c, F g, F& w, F& m, F& v) {
  if (c.maximize) g = -g;
  if (c.has_decay && c.way) w = w * c.decay;
  if (c.has_decay && !c.way) g = g + w * c.decay;
  const F apart = g - m;
  m = c.near_one ? g + apart * c.first_less : m + apart * c.first;
  v = v * c.second + (g * c.second_weight) * g;
  const F denominator = SquareRoot<F>::of(v) * c.root + c.eps;
  w = w + (m * c.size) / denominator;
}

// The seed of a parameter's draws for one purpose, made from the step's seed.
LPK_HD uint64_t update_seed(int64_t step_seed, int64_t parameter, int64_t key) {
  const uint64_t own =
      derive_seed(static_cast<uint64_t>(step_seed), static_cast<uint64_t>(parameter) + 1);
  return derive_seed(own, static_cast<uint64_t>(key));
}

}  // namespace lpk
