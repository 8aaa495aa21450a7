"""torch.compile computes parts of the forward pass again in backward: the draws are the forward
pass's."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import nn

import lpkernels as lp
from tests.nn.layer_cases import same, step
from tests.support.autograd import compiled, fresh_compiler  # noqa: F401

pytestmark = pytest.mark.usefixtures("fresh_compiler")

RECIPE = lp.Recipe(
    input="e4m3:stochastic", weight="e4m3:stochastic", output="e5m4:stochastic",
    fprop=lp.Accumulator("e6m5", "stochastic"), dgrad="e6m9", wgrad="e6m9",
)  # fmt: skip


def network(recipe: lp.Recipe = RECIPE) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 16)
    return lp.convert(nn.Sequential(*layers), recipe), torch.randn(256, 16)


def budget(share: float) -> Any:
    return torch._functorch.config.patch(activation_memory_budget=share)


# Before, the budgets .1, .5 and .9 of the first backend moved the weights' gradients by up to 3.7.
@pytest.mark.parametrize(
    ("backend", "share"),
    [
        *(("aot_eager", share) for share in (0.01, 0.1, 0.5, 0.9)),
        ("aot_eager_default_partitioner", 0.5),
        pytest.param("inductor", 0.5, marks=pytest.mark.slow),
    ],
)
def test_a_memory_budget_leaves_the_draws(backend: str, share: float) -> None:
    model, x = network()
    with budget(share):
        got = step(model, compiled(model, backend=backend), x)
    state = torch.get_rng_state()
    same(got, step(model, model, x))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("region", [False, True])
def test_a_budget_of_nothing_is_refused_where_something_is_drawn(region: bool) -> None:
    model, x = network()
    around = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    if region and around is None:
        pytest.skip("this torch has no budgets of regions")

    def run(x: torch.Tensor) -> torch.Tensor:
        with around(0.0) if region else nullcontext():
            return model(x)

    with nullcontext() if region else budget(0):
        with pytest.raises(Exception, match=r"memory budget of 0 .* keeps nothing"):
            compiled(run)(x)
        with torch.no_grad():
            assert compiled(model)(x).shape == (256, 16)
        # A recipe that draws nothing has eager's bits there too.
        torch._dynamo.reset()
        lp.set_recipe(model, lp.Recipe(input="e4m3", fprop="e6m5"))
        same(step(model, compiled(model), x), step(model, model, x))
