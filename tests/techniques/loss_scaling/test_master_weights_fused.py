"""The fused pass: the steps of torch's optimizers, the general path's draws, refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.support.autograd import Reads
from tests.techniques.loss_scaling import optimizers

STEPS = range(1, 5)
OPTIMIZERS: dict[str, optimizers.Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, maximize=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adam_small_beta": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.3, 0.9), maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}
DRAWN = {**optimizers.NARROW, "state": "bf16:stochastic"}
BYTES = {"weight": "bf16", "master": "fp8_e4m3:stochastic", "state": "fp8_e5m2:stochastic"}
RECIPES: dict[str, dict[str, Any]] = {
    "fp32": {"weight": "fp32"}, "copies": {"weight": "bf16"}, "drawn": DRAWN, "bytes": BYTES,
    "own": {"weight": "e4m3fn", "master": "e4m3fn:stochastic", "state": "fp16"},
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")


def make(name: str, held: list[nn.Parameter], fused: Any, recipe: dict[str, Any]) -> MasterWeights:
    seed = torch.tensor(7)
    return MasterWeights(OPTIMIZERS[name](held), **recipe, fused=fused, generator=seed)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_is_the_optimizer_alone_but_for_the_last_places(name: str) -> None:
    bare, held = optimizers.parameters(), optimizers.parameters()
    alone, optimizer = OPTIMIZERS[name](bare), make(name, held, True, RECIPES["fp32"])
    optimizers.train(alone, bare, STEPS)
    optimizers.train(optimizer, held, STEPS)
    for p, q in zip(held, bare, strict=True):
        # torch's foreach step differs by as much from torch's own single-tensor step.
        torch.testing.assert_close(p, q, rtol=1e-6, atol=2e-7)
        for key, value in alone.state[q].items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(optimizer.state[p][key], value, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_step_of_exact_products_is_that_of_the_general_path(recipe: dict[str, Any]) -> None:
    """Plain SGD with a power of two gives the same bits, draws, counts and step numbers."""
    ends = []
    for fused in (True, False):
        held = optimizers.parameters()
        inner = torch.optim.SGD(held, lr=0.125)
        optimizer = MasterWeights(inner, **recipe, fused=fused, generator=torch.tensor(7))
        optimizer.grad_scale = torch.tensor(4.0)
        for step in STEPS:
            # A change of options counts at once.
            optimizer.param_groups[0]["lr"] = 2.0**-step
            optimizers.train(optimizer, held, [step])
        ends.append((optimizers.snapshot(optimizer, held), optimizer.stagnation()))
    optimizers.assert_same(*ends)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw"])
def test_a_state_dict_goes_on_in_the_other_path(name: str, recipe: dict[str, Any]) -> None:
    """Keys, shapes and dtypes are the same, and so are the bits after a round trip. After one step
    from the same state, the draws of states differ for values at the edge of two draws alone."""
    runs = [optimizers.parameters(shapes=[(4000,), ()]) for _ in range(3)]
    fused, general, back = (
        make(name, held, way, recipe) for held, way in zip(runs, (True, False, None), strict=True)
    )
    optimizers.train(fused, runs[0], [1, 2])
    general.load_state_dict(copy.deepcopy(fused.state_dict()))
    back.load_state_dict(copy.deepcopy(general.state_dict()))
    for p, *others in zip(*runs, strict=True):
        for other in others:
            other.data.copy_(p.data)
    for optimizer, held in zip((fused, general, back), runs, strict=True):
        optimizers.train(optimizer, held, [3])
    optimizers.assert_same(optimizers.snapshot(back, runs[2]), optimizers.snapshot(fused, runs[0]))
    for p, q in zip(*runs[:2], strict=True):
        ours, theirs = fused.state[p], general.state[q]
        kinds = {key: (x.dtype, x.shape) for key, x in ours.items()}
        assert kinds == {key: (x.dtype, x.shape) for key, x in theirs.items()}
        if recipe in (DRAWN, BYTES):
            assert all((x != theirs[key]).sum() <= 12 for key, x in ours.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_fused_pass_reads_nothing_from_the_device(name: str) -> None:
    held = optimizers.parameters()
    optimizer = make(name, held, None, DRAWN)
    for step in range(3):
        optimizers.set_gradients(held, step)
        with Reads() as reads:
            optimizers.flagged_step(optimizer, float(step == 2), torch.tensor(8.0))
        # The first step that runs makes the states, unless the flag says that it does not run.
        has_states = name not in ("sgd", "decay")
        assert reads.count == (has_states and step == 0)


def test_parameters_of_any_kind_share_a_step() -> None:
    """Parameters that differ in dtype, group or formats, one without a gradient and one that
    only the general path takes, step together."""
    held = optimizers.parameters(shapes=[(9,), (9,), (9,), (9,), (3, 3, 2, 2)])
    held[1].data = held[1].data.bfloat16()
    held[4].data = held[4].data.to(memory_format=torch.channels_last)
    groups = [
        {"params": held[:2]},
        {"params": held[2:3], "lr": 0.01, "state": "block4_e4m3"},
        {"params": held[3:], "lr": 0.01},
    ]
    optimizer = MasterWeights(
        torch.optim.AdamW(groups, lr=0.125), weight="bf16", master="e6m9:stochastic"
    )
    for step in range(3):
        for number, p in enumerate(held):
            p.grad = None if (step, number) == (1, 0) else optimizers.gradient(p, number, step)
        optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in held] == [2, 3, 3, 3, 3]
    assert [of.asked for of in optimizer.stagnation().values()] == [18, 27, 27, 27, 108]


REFUSED = [
    (lambda p: torch.optim.Adam(p, amsgrad=True), {},
     "parameter '0': it keeps no maximum of second moments: leave amsgrad out; or leave fused"),
    (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), {}, "it takes lr as a number"),
    (torch.optim.RMSprop, {}, "as SGD, Adam and AdamW of torch do, not as RMSprop"),
    (OPTIMIZERS["adam"], {"state": "block32_e4m3"},
     "it rounds to float formats, and exp_avg is block32_e4m3"),
    (OPTIMIZERS["adam"], {"master": "e5m7"}, "codes of 8, 16 or 32 bits, and master=e5m7 has 13"),
    (OPTIMIZERS["adam"], {"state": {"exp_avg": "e4m3none"}},
     "exp_avg=e4m3none has no code for infinity or NaN"),
]  # fmt: skip


@pytest.mark.parametrize("kind, recipe, message", REFUSED)
def test_other_optimizers_and_formats_take_the_general_path_and_fused_refuses_them(
    kind, recipe, message
):
    options = {"weight": "bf16", **recipe, "generator": torch.tensor(1)}
    with pytest.raises(ValueError, match="fused=True, but not for parameter '0': ") as error:
        MasterWeights(kind(optimizers.parameters()), **options, fused=True)
    assert message in str(error.value)
    ends = []
    for fused in (None, False):
        held = optimizers.parameters(shapes=[(8, 8)])
        optimizer = MasterWeights(kind(held), **options, fused=fused)
        optimizers.train(optimizer, held, [1, 2])
        ends.append(optimizers.snapshot(optimizer, held))
    optimizers.assert_same(*ends)


def test_parameters_and_flags_that_are_refused() -> None:
    (p,) = optimizers.parameters(shapes=[(2, 3, 4, 4)])
    optimizer = make("sgd", [p], True, RECIPES["fp32"])
    p.data = p.data.to(memory_format=torch.channels_last)
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="fused=True, but not for parameter '0': it takes contig"):
        optimizer.step()
    wrong = optimizers.parameters(torch.float64, shapes=[(3,)])
    with pytest.raises(ValueError, match=r"float32, float16 and bfloat16, not torch\.float64"):
        make("sgd", wrong, True, RECIPES["fp32"])
    optimizer = make("sgd", optimizers.parameters()[:1], True, RECIPES["fp32"])
    with pytest.raises(ValueError, match="fused=True, but not for parameter '1'"):
        optimizer.add_param_group({"params": wrong})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match="fused must be True, False or None, got 'yes'"):
        make("sgd", optimizers.parameters(), "yes", RECIPES["fp32"])
