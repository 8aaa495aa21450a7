"""C++ reads the integers of descriptions where Python writes them."""

from tests.project.integers import FILE, header


def test_the_header_is_that_of_the_classes() -> None:
    message = "run `python -m tests.project.integers`"
    assert FILE.read_text(encoding="utf-8") == header(), message
