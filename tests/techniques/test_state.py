"""Objects with state, in one table: resumed, plain, refused, copied; and their constructors'
arguments, each refused by its name."""

import copy
import inspect
import json
import math
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.assignment import Assigned, Pins, Promoter, assign, demote, group
from lpkernels.techniques.cpt import PFQ, PrecisionScheduler
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights, diagnose
from lpkernels.techniques.state import Stateful
from tests.techniques.assignment.networks import chain, demoted, seeded_chain
from tests.techniques.cpt.fakes import Named
from tests.techniques.loss_scaling import optimizers

STEPS, CUT = 12, 7
NAN = math.nan


def saved(technique: Any) -> Any:
    return copy.deepcopy(technique.state_dict())


class Row(NamedTuple):
    """One object.

    make: a new object.  step: its step of this number, from 0.
    foreign: states that it refuses beside those that no Stateful object takes, or functions from
        its own state to one; and words of the errors.
    seen: everything that steps change.
    can_be_copied: False for an object that watches its model.
    """

    make: Callable[[], Any]
    step: Callable[[Any, int], object]
    foreign: list[tuple[Any, str]]
    seen: Callable[[Any], Any] = saved
    can_be_copied: bool = True


def scheduler(total: int = 16, cycles: int = 2, **options: Any) -> PrecisionScheduler:
    return PrecisionScheduler(Named(), total, cycles=cycles, **{"bits": (3, 8), **options})


def stages(**options: Any) -> PFQ:
    return PFQ(Named(), **{"period": 2, "eps": 9, **options})


def with_bits(technique: Any) -> Any:
    """The state, and the bits that its target was given last."""
    return saved(technique), technique._targets[""].calls[-1]


def promoter(threshold: float = 0.01) -> Promoter:
    made = demote(group(chain()), 1.0, pins=Pins(high="relu1.Y"))
    return Promoter(made, threshold)


def promotion(key: str) -> dict[str, Any]:
    """The state of a Promoter."""
    return {**promoter().state_dict(), "promotions": [(0, key, 0.3)]}


def assigned() -> Assigned:
    model, batch = seeded_chain()
    return assign(model, cross_entropy, demoted(model, batch))


def overflow(technique: Assigned, step: int) -> None:
    """A step; the first norm's results overflow from step 4 on, the second's from step 8 on."""
    for norm, start in (("1", 4), ("4", 8)):
        torch.nn.init.constant_(
            technique.model.get_parameter(f"{norm}.weight"), 20 * (step >= start)
        )
    technique(*seeded_chain()[1]).backward()
    technique.step()


def masters(**formats: str) -> Any:
    torch.manual_seed(0)
    return optimizers.wrapped("adam", optimizers.parameters(), **{"weight": "bf16", **formats})


def update(optimizer: Any, step: int) -> None:
    optimizers.train(optimizer, optimizers.held_by(optimizer), [step])


def scaled(scaler: Any, step: int) -> None:
    optimizer = torch.optim.SGD([optimizers.parameter()], lr=1.0)
    optimizers.take(scaler, optimizer, math.inf if step in (4, 8) else 1.0)


def diagnosis_of_a_layer() -> Any:
    torch.manual_seed(0)
    return diagnose(torch.nn.Linear(6, 4), "e4m3fn")


def count_step(diagnosis: Any, step: int) -> None:
    with diagnosis:
        diagnosis._model(torch.full((3, 6), 2.0**step)).sum().backward()


def network(**fields: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return lp.convert(torch.nn.Sequential(*layers), lp.Recipe(**fields))


def train_step(model: torch.nn.Module, step: int) -> None:
    """A step of SGD, whose draws have a seed of their own."""
    torch.manual_seed(step)
    model(torch.randn(5, 6) * 2.0 ** (step % 4)).square().mean().backward()
    lp.nn.update_scales(model)
    torch.optim.SGD(model.parameters(), 0.05).step()
    model.zero_grad()


def with_another_size(key: str) -> Callable[[Any], Any]:
    return lambda state: {**state, key: torch.ones(9)}


DELAYED = {
    "input": "tensor_e4m3_te", "weight": "tensor_e4m3_te",
    "grad_output": "tensor_e5m2_te:stochastic", "fprop": "fp32", "dgrad": "fp32", "wgrad": "fp32",
}  # fmt: skip
network_with_delayed_scales = partial(network, **DELAYED, scaling=lp.DelayedScaling(4))
network_with_ranges = partial(network, input="affine4", input_range="running:0.5:debiased")


PROMOTIONS = {2: {"bn1.Y": 0.3}, 9: {"conv1.Y": 0.3}}
STATIC = LossScaler(static=8.0).state_dict()
DYNAMIC = LossScaler(hysteresis=3).state_dict()
OBJECTS = {
    "PrecisionScheduler": Row(
        scheduler,
        lambda technique, step: technique.step(),
        [
            (scheduler(total=32).state_dict(), "total_steps: expected 16, got 32"),
            (scheduler(cycles=4).state_dict(), "plans: expected .*'cycles': 2"),
            (scheduler(bits=(4, 8)).state_dict(), r"plans: .*got .*\[4, 8\]"),
            (scheduler(profile=lambda z: z).state_dict(), "plans: .*function"),
            ({**scheduler().state_dict(), "last_step": -1}, "last_step: expected at least 0"),
        ],
        with_bits,
    ),
    "PFQ": Row(
        stages,
        lambda technique, step: technique.step(2.0 + step % 3),
        [
            (stages(period=4).state_dict(), "period: expected 2, got 4"),
            (stages(eps=0.1).state_dict(), r"eps: expected 9.0, got 0.1"),
            (stages(stages=[(3, 6), (4, 6)]).state_dict(), "stages: expected"),
            *(
                ({**stages().state_dict(), **wrong}, f"{next(iter(wrong))}: expected")
                for wrong in ({"stage": 4}, {"period_steps": 3}, {"window": ["x"]}, {"steps": -1})
            ),
        ],
        with_bits,
    ),
    "Promoter": Row(
        promoter,
        lambda technique, step: technique.update(PROMOTIONS.get(step, {})),
        [
            (promoter(0.5).state_dict(), "threshold: expected 0.01, got 0.5"),
            (promotion("conv9.Y"), "no tensor has the key"),
            (promotion("relu1.Y"), "high precision from the start"),
        ],
    ),
    "Assigned": Row(
        assigned,
        overflow,
        [({**assigned().state_dict(), "pending_counts": {"x.Y": (0,) * 4}}, "counts 'x.Y', which")],
        lambda technique: (saved(technique), technique.assignment.low),
    ),
    "LossScaler": Row(
        lambda: LossScaler(init_scale=16.0, growth_interval=2, hysteresis=2),
        scaled,
        [
            ([1], "expected a dict, got list"),
            (STATIC, "of a dynamic scale, got that of a static"),
            ({}, "The source state dict is empty"),
            ({"state": {}, "param_groups": []}, "without scale, .* its keys are state"),
            ({**DYNAMIC, "scale": -1.0}, "load_state_dict: scale: expected a positive"),
            ({**DYNAMIC, "backoff_factor": 2.0}, "backoff_factor: expected"),
            ({**DYNAMIC, "_growth_tracker": 2**31}, "expected 0 to 2147483647, got 2147483648"),
            ({**DYNAMIC, "_hysteresis_left": 4}, "_hysteresis_left: expected 1 to 3, got 4"),
        ],
    ),
    "a static LossScaler": Row(
        lambda: LossScaler(static=8.0),
        scaled,
        [(DYNAMIC, "static scale of 8.0"), (LossScaler(static=4.0).state_dict(), "8.0")],
    ),
    "MasterWeights": Row(
        masters,
        update,
        [
            (masters(weight="fp16").state_dict(), "group 0 has the formats .*bf16"),
            (torch.optim.SGD([optimizers.parameter()]).state_dict(), "of a MasterWeights"),
        ],
        lambda technique: optimizers.snapshot(technique, optimizers.held_by(technique)),
    ),
    "MasterWeights in narrow formats": Row(
        partial(masters, **optimizers.NARROW),
        update,
        [(masters().state_dict(), "group 0 has the formats .*e4m3fn")],
        lambda technique: optimizers.snapshot(technique, optimizers.held_by(technique)),
    ),
    "Diagnosis": Row(
        diagnosis_of_a_layer,
        count_step,
        [({}, "rows"), ({"rows": [1]}, "int")],
        can_be_copied=False,
    ),
    "layers with delayed scales": Row(
        network_with_delayed_scales,
        train_step,
        [
            ([1], "dict"),
            (with_another_size("0.scaling.input_history"), "mismatch for 0.scaling.input_history"),
        ],
    ),
    "layers with running ranges": Row(
        network_with_ranges,
        train_step,
        [
            ([1], "dict"),
            (with_another_size("0.input_range"), "mismatch for 0.input_range"),
        ],
    ),
}  # fmt: skip


@pytest.fixture(params=OBJECTS)
def row(request: pytest.FixtureRequest) -> Row:
    return OBJECTS[request.param]


def after(row: Row, steps: int) -> Any:
    technique = row.make()
    for step in range(steps):
        row.step(technique, step)
    return technique


def goes_on_alike(row: Row, technique: Any) -> None:
    """From step CUT on, as an object that was never saved."""
    for step in range(CUT, STEPS):
        row.step(technique, step)
    optimizers.assert_same(row.seen(technique), row.seen(after(row, STEPS)))


def through_a_file(state: Any) -> Any:
    """The state as JSON gives it back, where it has no tensors; else as torch does."""
    if any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(state)):
        return optimizers.from_file(state, weights_only=True)
    return json.loads(json.dumps(state, allow_nan=False))


def test_a_resumed_object_goes_on_as_an_uninterrupted_one(row: Row) -> None:
    first, second = after(row, CUT), row.make()
    state = first.state_dict()
    second.load_state_dict(through_a_file(state))
    optimizers.assert_same(second.state_dict(), state)
    goes_on_alike(row, second)
    optimizers.assert_same(first.state_dict(), after(row, CUT).state_dict())


@pytest.mark.parametrize("steps", [0, 1])
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(row: Row, steps: int) -> None:
    technique = after(row, steps)
    before, state = row.seen(technique), saved(technique)
    foreign = list(row.foreign)
    if isinstance(technique, Stateful):
        foreign += [([1], "expected a dict, got list"), ({}, "type: expected")]
        foreign += [({**state, "type": "Other"}, "got 'Other'"), ({**state, "other": 1}, "other")]
        for key in state.keys() - {"type"}:
            rest = {name: value for name, value in state.items() if name != key}
            foreign += [(rest, f"{key}: expected"), ({**state, key: "x"}, f"{key}: expected")]
    for other, words in foreign:
        with pytest.raises((KeyError, RuntimeError, TypeError, ValueError), match=words):
            technique.load_state_dict(other(state) if callable(other) else other)
        optimizers.assert_same(row.seen(technique), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("name", [name for name, row in OBJECTS.items() if row.can_be_copied])
def test_copies_go_on_by_themselves(name: str, copied: Any) -> None:
    row = OBJECTS[name]
    technique = after(row, CUT)
    before = row.seen(technique)
    goes_on_alike(row, copied(technique))
    optimizers.assert_same(row.seen(technique), before)


class Constructor(NamedTuple):
    """A constructor with arguments that it takes, and wrong values of each of its arguments.

    elsewhere: arguments whose errors do not name them, or that another library checks.
    """

    call: Callable[..., Any]
    right: Mapping[str, Any]
    wrong: Mapping[str, list[Any]]
    elsewhere: frozenset[str] = frozenset()


NO_WIDTH, NO_COUNT, NO_FORMAT = [(), "x", 99, 0, (8, 3)], [0, -2, 1.5, "2", True], ["fp17", 3, NAN]
CONSTRUCTORS = {
    "PrecisionScheduler": Constructor(
        PrecisionScheduler,
        {"targets": Named(), "total_steps": 8, "bits": (3, 8), "cycles": 1},
        {
            "total_steps": NO_COUNT,
            "bits": [*NO_WIDTH, None],
            "grad_bits": NO_WIDTH,
            "eval_bits": [0, 99, "8"],
            "formats": ["e4m3", 3, {3: "e2m0_sat"}],
            "last_step": [-2, 0.5, "1"],
            "cycles": [0, "2"],
            "profile": ["x", 3],
        },
        frozenset({"targets"}),
    ),
    "PFQ": Constructor(
        PFQ,
        {"targets": Named(), "period": 2},
        {
            "stages": [[(3, 6)], [(4, 6), (3, 8)], [3, 8], [(3, 6), (8, 33)]],
            "period": NO_COUNT,
            "eps": [0, -1, NAN, "1"],
            "decay": [0, 1.01, NAN, "1"],
            "eval_bits": [0, 99, "8"],
            "formats": ["e4m3", 3, {3: "e2m0_sat"}],
        },
        frozenset({"targets"}),
    ),
    "Promoter": Constructor(
        Promoter,
        {"assignment": promoter().assignment},
        {"assignment": ["all", None], "threshold": [-1, 2.0, NAN, "1"]},
    ),
    "LossScaler": Constructor(
        LossScaler,
        {},
        {
            "static": [0.0, -1, NAN, "8", 2.0**128],
            "init_scale": [0.0, -1, math.inf, NAN, 2.0**128, 2.0**-127, "8"],
            "growth_factor": [1, NAN, "2"],
            "backoff_factor": [0, 1, NAN, "2"],
            "growth_interval": [0, 1.5, "2"],
            "floor": [0.0, 2.0**17, NAN, "1"],
            "hysteresis": [0, 2**31, 1.5, "2"],
            "enabled": ["x", 2],
            "group": ["x", 3],
        },
    ),
    "MasterWeights": Constructor(
        MasterWeights,
        {"optimizer": torch.optim.SGD([optimizers.parameter()], 0.1, 0.9), "weight": "bf16"},
        {
            "optimizer": [[optimizers.parameter()], masters()],
            "weight": [*NO_FORMAT, None],
            "master": [*NO_FORMAT, None],
            "state": [*NO_FORMAT, {"momentum_buffer": "fp17"}],
            "grad": NO_FORMAT,
            "fused": ["x", 2],
            "generator": ["x", 3],
        },
    ),
    "assign": Constructor(
        assign,
        {
            "model": seeded_chain()[0],
            "loss": cross_entropy,
            "assignment": demoted(*seeded_chain()),
        },
        {
            "model": [1, None],
            "assignment": ["all"],
            "promote": [2.0, NAN, "x", promoter()],
            "fan_out": ["each", 3],
            "pack": ["x", 2],
            "loss": [3, None],
        },
    ),
    "diagnose": Constructor(
        diagnose,
        {"model": torch.nn.Linear(2, 2)},
        {
            "model": ["model", None],
            "fmt": ["fp17", "affine8", {"grad": "fp16"}],
            "scaler": ["1", 0.0, NAN],
        },
    ),
}
WRONG = [
    pytest.param(of, name, value, id=f"{who}-{name}-{value!r}"[:60])
    for who, of in CONSTRUCTORS.items()
    for name, values in of.wrong.items()
    for value in values
]


@pytest.mark.parametrize("of, name, value", WRONG)
def test_an_argument_of_wrong_type_or_range_is_refused_by_its_name(
    of: Constructor, name: str, value: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"(?i){name}"):
        of.call(**{**of.right, name: value})


@pytest.mark.parametrize("of", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_every_argument_of_a_constructor_has_wrong_values(of: Constructor) -> None:
    parameters = inspect.signature(of.call).parameters.values()
    assert {
        p.name for p in parameters if p.kind is not p.VAR_KEYWORD
    } <= of.wrong.keys() | of.elsewhere
    of.call(**of.right)
