"""The command; see the package."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.pages.tables import check, pages, written

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="say what differs from the records")
    what.add_argument("--write", action="store_true", help="renew the cells that differ")
    asked = parser.parse_args(arguments)
    for page, text in pages(root).items() if asked.write else ():
        try:
            (root / page).write_text(written(page, text, root), encoding="utf-8")
        except ValueError:
            print(f"{page}: left as it is", file=sys.stderr)  # The check below says why.
    found = check(root)
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
