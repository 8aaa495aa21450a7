"""The `lpkernels` command; `python -m lpkernels` is the same."""

import sys

from lpkernels.report import doctor


def main() -> None:
    """The entry point. `doctor` and `--version` need only numpy and torch, so that they can say
    what an installation lacks; all other commands need the [lab] extra."""
    alone = {"doctor": doctor.report, "--version": doctor.versions}
    if len(sys.argv) == 2 and sys.argv[1] in alone:
        print(alone[sys.argv[1]]())
        return
    from lpkernels import cli

    cli.main()


if __name__ == "__main__":
    main()
