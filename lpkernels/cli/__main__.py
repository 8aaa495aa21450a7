"""`python -m lpkernels.cli` is the `lpkernels` command."""

from lpkernels.cli import main

main()
