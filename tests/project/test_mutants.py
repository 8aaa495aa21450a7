"""`make mutants` changes what a host compiles, and no declaration, comment or string."""

from mutants import __main__ as mutants

HEADER = """constexpr double kHalf = 0.5;
#if defined(__CUDA_ARCH__)
double f(double a) { return a + 1.0; }
#else
double f(double a) { return a < 1.0 ? a - 2u : 0x1p-40; }  // a + 1
#endif
"""


def test_places_of_cpp_are_in_what_a_host_compiles() -> None:
    found = [*mutants.places("toy.h", HEADER)]
    assert {(place.file, place.line) for place in found} == {("toy.h", 5)}
    assert [place.switch(7) for place in found] == [
        "< ::lpk_mutants::Less<7>{} <",
        "::lpk_mutants::either<7>(1.0, 1.0 + 1)",
        "- ::lpk_mutants::Minus<7>{} -",
        "::lpk_mutants::either<7>(2u, 2u + 1)",
    ]
