"""Precision of a recipe: the formats that set_precision makes; running ranges as descriptions."""

from dataclasses import replace
from typing import Any

import pytest

import lpkernels as lp
from lpkernels.arithmetic import checked_formats, precision, with_precision

CPT = lp.recipe("cpt_fu2021")
TABLE = {4: "fp4_e2m1", 6: "fp6_e3m2", 8: "e4m3fn_sat"}


def forms(recipe: lp.Recipe) -> list[str]:
    names = ("input", "weight", "grad_output", "grad_input", "grad_weight")
    return [str(getattr(recipe, name)) for name in names]


def test_affine_formats_take_bits_and_keep_all_else() -> None:
    recipe = replace(CPT, grad_input=lp.Quantizer("affine8_sym", "toward_zero"))
    want = ["affine3", "affine3_axis0", "affine6:stochastic", "affine6_sym:toward_zero", "None"]
    changed = with_precision(recipe, 3, 6)
    assert forms(changed) == want
    assert changed.input_range == recipe.input_range
    assert with_precision(changed, 8, 8) == recipe


def test_affine_quantizers_of_more_than_16_bits_are_fp32_until_fewer_come() -> None:
    recipe = replace(CPT, dgrad_weight=lp.Quantizer("fp32"), wgrad_input=lp.Quantizer("affine5"))
    wide = with_precision(recipe, 17, 32)
    assert forms(wide)[:3] == ["e8m23", "e8m23", "e8m23:stochastic"]
    assert (str(wide.wgrad_input), str(wide.dgrad_weight)) == ("e8m23", "e8m23")
    assert wide.input_range == recipe.input_range and precision(wide) == (32, 32)
    mixed = with_precision(wide, (20, 4), None, narrow=recipe)
    assert forms(mixed)[:3] == ["e8m23", "affine4_axis0", "e8m23:stochastic"]
    back = with_precision(mixed, 16, 8, narrow=recipe)
    assert forms(back)[:3] == ["affine16", "affine16_axis0", "affine8:stochastic"]
    assert (str(back.wgrad_input), str(back.dgrad_weight)) == ("affine16", "e8m23")
    with pytest.raises(ValueError, match="e8m23 has no width to choose"):
        with_precision(wide, 8, 8)


def test_fixed_formats_keep_their_integer_part() -> None:
    recipe = lp.Recipe(input="fixed8_f5", weight="ufixed8_f12_wrap:stochastic:bits=9")
    changed = with_precision(recipe, 5, None)
    assert forms(changed)[:2] == ["fixed5_f2", "ufixed5_f9_wrap:stochastic:bits=9"]
    assert with_precision(changed, 8, None) == recipe


@pytest.mark.parametrize(
    "recipe, forward, backward, want",
    [
        (CPT, 4, None, ["affine4", "affine4_axis0", "affine8:stochastic"]),
        (CPT, None, 5, ["affine8", "affine8_axis0", "affine5:stochastic"]),
        (CPT, (3, 4), 5, ["affine3", "affine4_axis0", "affine5:stochastic"]),
        (CPT, (None, 4), None, ["affine8", "affine4_axis0", "affine8:stochastic"]),
        (CPT, None, None, ["affine8", "affine8_axis0", "affine8:stochastic"]),
        (lp.Recipe(weight="affine8"), 3, 8, ["None", "affine3", "None"]),
    ],
)
def test_a_side_of_none_stays(recipe: lp.Recipe, forward: Any, backward: Any, want: Any) -> None:
    assert forms(with_precision(recipe, forward, backward))[:3] == want


@pytest.mark.parametrize(
    "formats, recipe, want",
    [
        (TABLE, lp.Recipe(input="e4m3:stochastic", bias="bf16"), "fp6_e3m2:stochastic"),
        ({6: "block16_e3m2"}, lp.Recipe(input="block8_axis1_e4m3"), "block16_axis1_e3m2"),
        ({6: "fp8_tensor"}, lp.Recipe(input="block8_axis1_e4m3"), "tensor_e4m3"),
        ({6: "block16_e3m2"}, lp.Recipe(input="nvfp4_2d"), "block16_e3m2"),
        ({6: "affine6"}, lp.Recipe(input="affine8_sym_axis0"), "affine6_sym_axis0"),
        ({6: "block16_axis0_e3m2"}, lp.Recipe(input="e4m3"), "block16_axis0_e3m2"),
    ],
)
def test_table_gives_the_format(formats: Any, recipe: lp.Recipe, want: str) -> None:
    changed = with_precision(recipe, 6, None, checked_formats(formats))
    assert changed.input == lp.Recipe(input=want).input
    assert changed.bias == recipe.bias


def test_cpt_fu2021_has_the_quantizers_of_the_paper() -> None:
    assert str(CPT) == (
        "Recipe(input='affine8', weight='affine8_axis0', grad_output='affine8:stochastic', "
        "input_range='running:0.9')"
    )
