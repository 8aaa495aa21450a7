"""The tiles of csrc/cuda/product/cut.h."""

import re
from pathlib import Path

_CUT = Path(__file__).parents[2] / "csrc" / "cuda" / "product" / "cut.h"


def _tiles() -> dict[str, list[tuple[int, ...]]]:
    tables = re.findall(r"TileShape (k\w+)\[\] = \{(.*?)\};", _CUT.read_text(), re.DOTALL)
    return {
        name: [tuple(map(int, row.split(","))) for row in re.findall(r"\{([^{}]+)\}", rows)]
        for name, rows in tables
    }


#: By the name of a table: rows and columns of a tile, how many a processor holds, its cost.
TILES = _tiles()
