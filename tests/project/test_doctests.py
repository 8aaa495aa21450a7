"""The examples in the docstrings of public names run and print what they show."""

import doctest
from collections.abc import Callable
from typing import Any

import torch

import lpkernels as lp
from tests.loops import each
from tests.support.parameters import public

FINDER = doctest.DocTestFinder(recurse=False)
EXAMPLES = {name: value for name, value in public() if ">>> " in (value.__doc__ or "")}
#: Names of the start page and the guides.
USED = """
quantize matmul accumulator parse_format Recipe scaled pack count seed_from recipe policy convert
revert set_recipe set_precision nn.Linear nn.summary functional.linear techniques.accumulation.plan
techniques.cpt.PrecisionScheduler techniques.loss_scaling.LossScaler techniques.assignment.trace
techniques.loss_scaling.MasterWeights techniques.assignment.demote techniques.assignment.assign
""".split()


def failures(value: Callable[..., Any]) -> str:
    """The report of the examples that print something else; "" if none does."""
    torch.manual_seed(0)
    torch.set_printoptions(profile="default")
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    names = {"lp": lp, "torch": torch}
    for test in FINDER.find(value, value.__name__, module=False, globs=names):
        runner.run(test, out=report.append)
    return "".join(report)


@each("name", EXAMPLES)
def test_examples_print_what_they_show(name: str) -> None:
    assert failures(EXAMPLES[name]) == ""


def test_names_of_the_guides_have_examples() -> None:
    assert len(EXAMPLES) > 60
    assert [name for name in USED if f"lpkernels.{name}" not in EXAMPLES] == []


def test_wrong_output_is_found() -> None:
    def planted() -> None:
        """
        >>> lp.parse_format("e5m2").max
        2.0
        """

    assert "57344.0" in failures(planted)
