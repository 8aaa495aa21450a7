"""The command; see the package."""

import argparse

from bench.zoo.models import ZOO
from bench.zoo.table import PAGE, row, written


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {PAGE.name}")
    if parser.parse_args(arguments).write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(written(page), encoding="utf-8")
    else:
        print(*map(row, ZOO), sep="\n")


if __name__ == "__main__":
    main()
