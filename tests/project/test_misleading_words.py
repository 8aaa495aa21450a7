"""A word of another kind, of another program or of no kind is answered with the word that is meant,
and an error lists at most five names and how to list all."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.experiments.training.config import RunConfig
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.cpt import parse_schedule
from lpkernels.techniques.loss_scaling import diagnose
from tests.loops import rows
from tests.support.commands import call, sentence

X = torch.randn(2, 4)
WANG, SUMS = lp.recipe("fp8_wang2018"), lp.accumulator("e6m9_chunk64")


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


IS_RECIPE = "is a recipe: pass recipe="
IS_SUMS = "is an accumulator, for fprop, dgrad and wgrad"
BOTH = r"for operands as lp\.Recipe\(input='{0}', .*, for sums as lp\.Recipe\(fprop='{0}', "


@rows(
    "call, error, name",
    (lambda: lp.convert(model(), None), TypeError, r"'fp32', and lp\.revert\(model\)"),
    (lambda: lp.convert(model(), SUMS), TypeError, r"lp\.Recipe\(fprop='e6m9_chunk64'"),
    (lambda: lp.matmul(X, X.T, "fp8_wang2018"), ValueError, IS_RECIPE),
    (lambda: lp.quantize(X, "fp8_wang2018"), ValueError, IS_RECIPE),
    (lambda: lp.quantize(X, "e6m9_chunk64"), ValueError, IS_SUMS),
    (lambda: lp.quantize(X, SUMS), TypeError, IS_SUMS),
    (lambda: lp.Accumulator(WANG), TypeError, IS_RECIPE),
    (lambda: lp.Recipe(fprop="fp8_wang2018"), ValueError, IS_RECIPE),
    (lambda: lp.Recipe(wgrad=WANG), TypeError, IS_RECIPE),
    (lambda: lp.Recipe(input="e6m9_chunk64"), ValueError, IS_SUMS),
    (lambda: lp.Recipe(fprop=lp.Quantizer("e5m2")), TypeError, "Quantizer, for input, weight"),
    (lambda: lp.Recipe(forward="e6m9"), TypeError, "'fprop'"),
    (lambda: lp.convert(model(), "e6m5"), ValueError, BOTH.format("e6m5")),
    (lambda: lp.convert(model(), lp.Quantizer("e5m2")), TypeError, r"lp\.Recipe\(input='e5m2'"),
    (lambda: lp.nn.Linear(2, 2, recipe="mxint8"), ValueError, r"lp\.Recipe\(input='block"),
    (lambda: lp.policy("lba_m7e4"), ValueError, r"lp\.recipe\('lba_m7e4'\)"),
    (lambda: lp.QLinear, AttributeError, r"lpkernels\.nn\.Linear"),
    (lambda: lp.backends.use, AttributeError, "backend= of a function"),
    (lambda: lp.nn.summary(model()), TypeError, r"pass a batch: summary\(model, batch\)"),
    (lambda: lp.nn.summary(model(), (8, 16)), TypeError, r"pass a batch: .*torch.randn\(8, 16\)"),
    (lambda: lp.Accumulator(order="kahan"), ValueError, "'compensated'"),
    (lambda: lp.Accumulator(order="tree"), ValueError, "'pairwise'"),
)
def test_a_word_of_another_kind_is_answered_with_the_word_that_is_meant(
    call: Any, error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=name) as raised:
        call()
    assert type(raised.value) is error


def test_a_format_among_the_values_of_the_command_quantize_is_an_option() -> None:
    assert "--format e4m3" in sentence(call("quantize", "e4m3", "0.3"), 2)


def test_a_batch_may_be_numbers_in_a_tuple_and_a_model_may_take_nothing() -> None:
    class Nothing(nn.Module):
        def forward(self, scale: int = 2) -> torch.Tensor:
            return X @ X.mT * scale

    assert lp.nn.summary(Nothing()).macs == 16
    assert lp.nn.summary(model(), (X,)).macs == lp.nn.summary(model(), X).macs


@rows(
    "call, listing",
    (lambda: lp.recipe("fp7"), r"lp\.recipes\(\)"),
    (lambda: lp.parse_format("xyzzy"), "`lpkernels formats`"),
    (lambda: lp.accumulator("xyzzy"), "docs/arithmetic.md"),
    (lambda: lp.quantize(X, "e5m2", "near"), r"help\(lpkernels\.quantize\)"),
    (lambda: lp.Recipe(weights="e5m2"), r"help\(lpkernels\.Recipe\)"),
    (lambda: lp.convert(nn.Sequential(*model(), *model()), WANG, exclude="9"), "named_modules"),
    (lambda: lp.xyzzy, r"dir\(lpkernels\)"),
    (lambda: RunConfig.of(epoch=3), "lpkernels train --help"),
    (lambda: parse_schedule("cptt:3-8/8"), "docs/cyclic-precision.md"),
    (lambda: diagnose(model(), fmt={"inputs": "e5m2"}), r"help\(diagnose\)"),
)
def test_an_error_lists_the_five_nearest_names_and_how_to_list_all(call: Any, listing: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)) as raised:
        call()
    said = str(raised.value)
    shown = re.findall(rf"((?:[^,;:]+, ){{4}}[^,;:]+) and \d+ more \([^)]*?{listing}", said)
    assert shown, said
    # No longer list hides in the rest of the message.
    assert not re.search(r"(?:[\w.]+, ){6}", said)


def test_few_names_are_listed_in_their_order_and_many_by_nearness() -> None:
    assert nearest("c", ("a", "b", "a", "c2")) == "a, b, c2"
    many = [f"name{i}" for i in range(9)] + ["Target"]
    found = nearest("target", many, "x lists all", shown=repr)
    assert found.startswith("'Target', ") and found.endswith(" and 5 more (x lists all)")
    assert nearest(3, many).count(",") == 4
    assert nearest("x", []) == ""
