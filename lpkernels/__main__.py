"""`python -m lpkernels` is the `lpkernels` command."""

from lpkernels_command import main

if __name__ == "__main__":
    main()
