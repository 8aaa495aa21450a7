"""Bytes as text, and back."""

import pytest

from lpkernels.report.sizes import bytes_from, bytes_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (6168, "6.02 KiB"),
     (1.5 * 2**20, "1.50 MiB"), (3 * 2**30, "3.00 GiB"), (5000 * 2**30, "5000.00 GiB")],
)  # fmt: skip
def test_bytes_have_a_unit(size: float, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("64KiB", 65536), ("64 kib", 65536), ("1.5MB", 1.5e6), ("2e3", 2000), ("17 B", 17),
     (" 1 GiB ", 2**30)],
)  # fmt: skip
def test_sizes_are_read(text: str, size: float) -> None:
    assert bytes_from(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "12 parsecs", "-3KiB", "0", "nan", "inf", "1 2 KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a size such as 64KiB or 1.5MiB, in B, kB"):
        bytes_from(text)
