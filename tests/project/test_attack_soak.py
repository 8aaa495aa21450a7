"""The soak notices growth."""

import pytest

from attacks.soak import MOST_BYTES_PER_ROUND, Sample, flat


def samples(*, grown: float = 0.0, handles: int = 7, threads: int = 5) -> list[Sample]:
    """A sample in each of 100 rounds. `grown` bytes are added in each, and in the last there are so
    many handles and threads."""
    first = Sample(0.0, 400 << 20, 7, 5, 0, 0)
    seen = [
        first._replace(seconds=float(i), rounds=i, bytes=first.bytes + round(grown * i))
        for i in range(100)
    ]
    return [*seen[:-1], seen[-1]._replace(handles=handles, threads=threads)]


def test_flat_figures_pass() -> None:
    figures = flat(samples(grown=MOST_BYTES_PER_ROUND / 2))
    assert figures["rounds"] == 99 and figures["bytes_per_round"] == MOST_BYTES_PER_ROUND / 2


@pytest.mark.parametrize(
    ("grown", "message"),
    [
        ({"grown": 2 * MOST_BYTES_PER_ROUND}, "memory grows"),
        ({"handles": 8}, r"handles: between rounds there were \[7, 8\]"),
        ({"threads": 6}, r"threads: between rounds there were \[5, 6\]"),
    ],
    ids=["memory", "handles", "threads"],
)
def test_growth_is_noticed(grown: dict[str, float], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        flat(samples(**grown))  # type: ignore[arg-type]
