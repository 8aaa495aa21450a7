"""The operands of a Recipe's products: texts, pickles, and which codes a product reads."""

import pytest

import lpkernels as lp
from lpkernels.rng import Role

K = "block32_k_e4m3_up"
PRETRAINING = {
    "input": "block16_k_e2m1_se4m3fn_t_te",
    "weight": "tile16x16_k_e2m1_se4m3fn_t_te",
    "grad_output": "block16_k_e2m1_se4m3fn_t_te:stochastic",
    "wgrad_input": "block16_k_e2m1_se4m3fn_t_te:rht16",
    "wgrad_grad_output": "block16_k_e2m1_se4m3fn_t_te:stochastic:rht16",
}


@pytest.mark.filterwarnings("ignore::lpkernels.FixedAxisWarning")
def test_recipes_whose_values_serve_every_product_have_no_operands_of_their_own() -> None:
    for fields in (
        {},
        {"input": "e5m2"},
        {"input": "mxfp8", "weight": "affine8"},
        {"bias": "nvfp4"},
    ):
        assert lp.Recipe(**fields).by_product is None, fields


def test_which_codes_a_product_reads() -> None:
    taken = lp.Recipe(**PRETRAINING).by_product
    assert taken is not None and taken.plain_bias
    # Square tiles are made once.
    own = {name: getattr(taken, name).own for name in taken._fields[:6]}
    assert own == {
        "input": False, "weight": False, "grad_output": False,
        "dgrad_weight": False, "wgrad_input": True, "wgrad_grad_output": True,
    }  # fmt: skip
    assert taken.dgrad_weight.role == Role.WEIGHT
    assert taken.wgrad_input.role == Role.WGRAD_INPUT
    assert taken.wgrad_grad_output.role == Role.WGRAD_GRAD_OUTPUT
    assert taken.wgrad_input.transform == (16, "te") and taken.wgrad_input.along == -2
    rectangle = lp.Recipe(weight="tile4x2_k_e4m3_up").by_product
    assert rectangle is not None and rectangle.dgrad_weight.own
    lying = lp.Quantizer("tile2x4_e4m3_up").to_ints()
    assert rectangle.dgrad_weight.ints == lying
    assert rectangle.dgrad_weight.role == Role.DGRAD_WEIGHT
    column = lp.Recipe(weight="tile4x1_k_e4m3_up").by_product
    assert (
        column is not None and column.dgrad_weight.ints == lp.Quantizer("block4_e4m3_up").to_ints()
    )


def test_only_weight_and_input_are_made_from_codes() -> None:
    taken = lp.Recipe(input=K, weight=K, grad_output=K, requantize="codes").by_product
    assert taken is not None
    from_codes = [name for name in taken._fields[:6] if getattr(taken, name).from_codes]
    assert from_codes == ["dgrad_weight", "wgrad_input"]
