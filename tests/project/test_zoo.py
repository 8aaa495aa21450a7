"""The table of fourteen kinds of models on the page of layers is what the models give."""

import pytest
from torch.nn import functional as F

from bench.zoo.models import ZOO
from bench.zoo.table import PAGE, row, split


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("number, name", [*enumerate(ZOO)], ids=[*ZOO])
def test_a_model_trains_and_its_row_is_on_the_page(number: int, name: str) -> None:
    lines = split(PAGE.read_text(encoding="utf-8"))[1]
    assert len(lines) == len(ZOO)
    assert lines[number] == row(name), "python -m bench.zoo --write renews the page"
