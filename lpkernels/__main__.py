"""`python -m lpkernels` is the `lpkernels` command."""

from lpkernels.cli import main

main()
