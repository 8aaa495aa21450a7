"""`each` goes through all cases, and a failure names its case."""

import sys

import pytest

from tests.loops import each, rows

_SEEN: list[tuple[int, str]] = []
_COMBINED: list[tuple[str, int]] = []


@each("number", (1, 2))
@rows("letter, sign", ("a", "+"), ("b", "-"))
def test_every_case_comes_with_the_fixtures(number, letter, sign, monkeypatch):
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    _SEEN.append((number, letter + sign))
    if number == 2 and letter == "b":
        assert _SEEN == [(1, "a+"), (1, "b-"), (2, "a+"), (2, "b-")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before 3.11")
def test_a_failure_names_its_case() -> None:
    @each("fmt", ("e5m2", "e4m3"))
    def test(fmt: str) -> None:
        assert fmt == "e5m2"

    with pytest.raises(AssertionError) as caught:
        test()
    assert caught.value.__notes__ == ["case: fmt = e4m3"]


@each("letter, digit", "ab", (1, 2))
def test_a_list_for_each_name_gives_all_combinations(letter: str, digit: int) -> None:
    _COMBINED.append((letter, digit))
    if letter == "b" and digit == 2:
        assert _COMBINED == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_a_case_that_skips_leaves_the_others() -> None:
    seen = []

    @each("number", (1, 2, 3))
    def test(number: int) -> None:
        if number < 3:
            pytest.skip(f"no {number}")
        seen.append(number)

    test()
    assert seen == [3]


def test_it_skips_where_every_case_does() -> None:
    @each("number", (1, 2))
    def test(number: int) -> None:
        pytest.skip(f"no {number}")

    with pytest.raises(pytest.skip.Exception, match="no 2"):
        test()
