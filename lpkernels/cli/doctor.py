"""`lpkernels doctor`: what this installation can do."""

import typer

from lpkernels.cli._options import alone


def doctor() -> None:
    """Show what this installation can do, and the reason for everything it lacks.

    Example: `lpkernels doctor`
    """
    from lpkernels.report import doctor

    typer.echo(doctor.report())


app = alone(doctor)
