"""What LossScaler needs of torch.amp.GradScaler beyond its documentation, under any torch."""

import inspect

import pytest
import torch
from torch.amp.grad_scaler import GradScaler, OptState

from lpkernels.techniques.loss_scaling import LossScaler
from lpkernels.techniques.loss_scaling.scaler import StepRecord

pytestmark = pytest.mark.smoke
# The private methods that LossScaler overrides or calls, and their parameters after self.
METHODS = {
    "_lazy_init_scale_growth_tracker": ["dev"],
    "_unscale_grads_": ["optimizer", "inv_scale", "found_inf", "allow_fp16"],
    "_check_inf_per_device": ["optimizer"],
    "_check_scale_growth_tracker": ["funcname"],
}


def test_torch_has_the_methods_and_attributes() -> None:
    for name, expected in METHODS.items():
        _, *parameters = inspect.signature(getattr(GradScaler, name)).parameters
        assert parameters == expected
    scaler = GradScaler("cpu")
    assert {"_enabled", "_device", "_scale", "_growth_tracker"} <= vars(scaler).keys()
    state = {"stage": OptState.READY, "found_inf_per_device": {}}
    assert scaler._per_optimizer_states[0] == state and OptState.STEPPED in OptState
    assert torch.optim.SGD([torch.ones(1)], fused=True)._step_supports_amp_scaling


@pytest.mark.parametrize("fused", [False, True])
def test_an_infinity_skips_the_step_and_is_named(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([("w", weight)], lr=1.0, fused=fused)
    scaler = LossScaler(init_scale=8.0, floor=4.0)
    for factor, record in ((float("inf"), StepRecord(False, "w")), (0.5, StepRecord(True))):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.last_step, scaler.get_scale()) == (record, 4.0)
    assert torch.equal(weight.detach(), torch.full((3,), 0.5))
    torchs = GradScaler("cpu")
    torchs.load_state_dict(scaler.state_dict())
    assert torchs.get_scale() == 4.0
