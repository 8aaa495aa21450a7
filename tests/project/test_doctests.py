"""The examples in the docstrings of public names run and print what they show."""

import doctest
from collections.abc import Callable
from typing import Any

import torch

import lpkernels as lp
from tests.loops import each
from tests.support.parameters import public

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
FINDER = doctest.DocTestFinder(recurse=False)
EXAMPLES = {name: value for name, value in public() if ">>> " in (value.__doc__ or "")}
#: The names of the start page and the guides.
USED = """
quantize matmul accumulator Accumulator parse_format FloatFormat FixedFormat BlockFormat TableFormat
AffineFormat Quantizer Recipe scaled pack unpack count seed_from recipe policy convert revert
set_recipe set_precision save_policy load_policy posit nn.Linear nn.Conv2d nn.summary
nn.observing.observe functional.linear functional.einsum backends.status backends.take_tiers
arithmetic.max_l1_norm techniques.accumulation.plan techniques.accumulation.measure
techniques.accumulation.min_mantissa_bits techniques.cpt.PrecisionScheduler techniques.cpt.PFQ
techniques.cpt.bits_at techniques.cpt.precision_range_test techniques.loss_scaling.LossScaler
techniques.loss_scaling.MasterWeights techniques.loss_scaling.diagnose
techniques.loss_scaling.layer_scales techniques.assignment.trace techniques.assignment.group
techniques.assignment.demote techniques.assignment.assign techniques.assignment.score
techniques.pareto.ErrorMatrix techniques.pareto.FormatSpace techniques.pareto.TrainingRecipe
""".split()


def failures(value: Callable[..., Any]) -> str:
    """The report of the examples that print something else; "" if none does."""
    torch.manual_seed(0)
    torch.set_printoptions(profile="default")
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    found = FINDER.find(value, value.__name__, module=False, globs={"lp": lp, "torch": torch})
    for test in found:
        runner.run(test, out=report.append)
    return "".join(report)


@each("name", EXAMPLES)
def test_examples_print_what_they_show(name: str) -> None:
    assert failures(EXAMPLES[name]) == ""


def test_names_of_the_guides_have_examples() -> None:
    assert [name for name in USED if f"lpkernels.{name}" not in EXAMPLES] == []


def test_wrong_output_is_found() -> None:
    def planted() -> None:
        """
        >>> lp.parse_format("e5m2").max, torch.ones(1).item()
        (57344.0, 2.0)
        """

    assert "(57344.0, 1.0)" in failures(planted)
