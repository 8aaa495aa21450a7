// Expressions with two values, one of them a mutant's: `python -m mutants` puts them into a copy of
// the sources. `a < Less<7>{} < b` is `a <= b` where LPK_MUTANT is 7, and `a < b` elsewhere. The
// operator stands twice, so that its precedence stays.
#pragma once

#ifndef __CUDACC__
#include <cstdlib>

namespace lpk_mutants {

inline const int chosen = std::getenv("LPK_MUTANT") ? std::atoi(std::getenv("LPK_MUTANT")) : 0;

// These are compiled for several instruction sets, so that none may be shared by its name.
#define LPK_INLINE static inline __attribute__((always_inline))

template <int kNumber, class T>
LPK_INLINE T either(T own, T other) {
  return chosen == kNumber ? other : own;
}

#define LPK_SWITCH(Name, own, other)                                    \
  template <int kNumber>                                                \
  struct Name {};                                                       \
  template <int kNumber, class A>                                       \
  struct Name##Begun {                                                  \
    A a;                                                                \
  };                                                                    \
  template <int kNumber, class A>                                       \
  LPK_INLINE Name##Begun<kNumber, A> operator own(A a, Name<kNumber>) { \
    return {a};                                                         \
  }                                                                     \
  template <int kNumber, class A, class B>                              \
  LPK_INLINE auto operator own(Name##Begun<kNumber, A> begun, B b) {    \
    return chosen == kNumber ? begun.a other b : begun.a own b;         \
  }

LPK_SWITCH(Less, <, <=)
LPK_SWITCH(LessEqual, <=, <)
LPK_SWITCH(Greater, >, >=)
LPK_SWITCH(GreaterEqual, >=, >)
LPK_SWITCH(Equal, ==, !=)
LPK_SWITCH(NotEqual, !=, ==)
LPK_SWITCH(Plus, +, -)
LPK_SWITCH(Minus, -, +)
LPK_SWITCH(Times, *, +)
LPK_SWITCH(Divided, /, *)
LPK_SWITCH(And, &, |)
LPK_SWITCH(Or, |, &)
LPK_SWITCH(Left, <<, >>)
LPK_SWITCH(Right, >>, <<)

}  // namespace lpk_mutants
#endif
