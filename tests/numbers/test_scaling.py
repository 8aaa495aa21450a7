"""DelayedScaling: its text, its values, and the recipes that take it."""

from dataclasses import replace
from typing import Any

import lpkernels as lp
from lpkernels.arithmetic import as_scaling
from tests.loops import each
from tests.support.refusals import refused

TEXTS = {
    "delayed:history=1024:max": lp.DelayedScaling(),
    "delayed:history=4:most_recent:margin=1": lp.DelayedScaling(4, "most_recent", 1),
    "delayed:history=1:max:local": lp.DelayedScaling(1, reduce=False),
}


@each("text, its", TEXTS.items())
def test_text_and_values_read_back(text: str, its: lp.DelayedScaling) -> None:
    assert str(its) == text and as_scaling(text) == its and as_scaling(its) is its
    recipe = lp.Recipe(input="tensor_e4m3", weight="tensor_int8", scaling=text)
    assert recipe.scaling == its and recipe != replace(recipe, scaling=None)


def test_a_short_text_has_the_defaults() -> None:
    assert as_scaling("delayed") == lp.DelayedScaling()
    assert as_scaling("delayed:margin=3") == lp.DelayedScaling(margin=3)


def scaled(**fields: Any) -> lp.Recipe:
    return lp.Recipe(**fields, scaling="delayed")


test_wrong_scalings_are_refused = refused(
    [
        (lambda: lp.DelayedScaling(0), ValueError, "history must be in 1..1048576, got 0"),
        (lambda: lp.DelayedScaling(4.0), TypeError, "history must be an int, got 4.0"),
        (lambda: lp.DelayedScaling(4, "mean"), ValueError, "one of max, most_recent; got 'mean'"),
        (lambda: lp.DelayedScaling(margin=65), ValueError, "margin must be in 0..64, got 65"),
        (lambda: lp.DelayedScaling(reduce=1), TypeError, "reduce must be True or False, got 1"),
        (lambda: as_scaling(3), TypeError, "expected a DelayedScaling or its text, .* got 3"),
        (lambda: as_scaling("delay"), ValueError, "such as 'delayed:.*', got 'delay'"),
        (lambda: as_scaling("delayed:max:max"), ValueError, "gives its algorithm twice"),
        (lambda: as_scaling("delayed:history=few"), ValueError, "expected a whole number"),
        (lambda: as_scaling("delayed:mean"), ValueError, "expected an algorithm, 'local' or hist"),
        (lambda: lp.Recipe(scaling=3), TypeError, "Recipe: scaling: expected a DelayedScaling"),
        (lambda: scaled(), ValueError, "got none of them rounded"),
        *(
            (lambda fmt=fmt: scaled(input=fmt), ValueError, f"codes, got input={fmt}")
            for fmt in ("e4m3fn", "row_k_e4m3", "tensor_e4m3_se8m0_up", "block32_e4m3_up")
        ),
        (
            lambda: scaled(input="tensor_e4m3", wgrad_input="tensor_e4m3"),
            ValueError,
            "the same codes, got wgrad_input=tensor_e4m3",
        ),
    ]
)
