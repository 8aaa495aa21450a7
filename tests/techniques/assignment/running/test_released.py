"""assign(like="release"), one rule at a time; whole runs are in test_released_runs.py."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import (
    Assigned,
    Formats,
    Promoter,
    assign,
    demote,
    group,
    kept_memory,
    operator_based,
    trace,
    train_with_assignment,
    uniform,
)
from tests.compare import assert_bit_equal
from tests.support.assigned_audit import audit
from tests.support.refusals import refused
from tests.techniques.assignment.networks import demoted, seeded_chain
from tests.techniques.assignment.running.released_reference import HIGH, LOW, rounded
from tests.techniques.assignment.running.runs import gradients, same, seen_by

RELEASE: dict[str, Any] = {"like": "release"}


def released(
    model: nn.Module, batch: Any, ratio: float = 1.0, loss: Any = F.cross_entropy, **options: Any
) -> Assigned:
    made = demote(group(trace(model, loss, batch, **RELEASE)), ratio, **RELEASE)
    return assign(model, loss, made, **RELEASE, **options)


def hard_values(step: float) -> Tensor:
    """Values of all sizes; multiples of half a step and their neighbours; zeros and infinities."""
    sizes = torch.randn(4000) * torch.exp2(torch.randint(-50, 37, (4000,)).float())
    halves = torch.arange(1, 40) * (step / 2)
    near = [halves, halves.nextafter(torch.zeros(())), halves.nextafter(torch.full((), torch.inf))]
    ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-42])
    return torch.cat([sizes, *near, *(-x for x in near), ends])


def test_values_are_rounded_as_in_the_released_code() -> None:
    model, batch = seeded_chain()
    table = released(model, batch)._table
    low = {"0.Y": (LOW["Y"], True), "0.GY": (LOW["GY"], False), "0.weight.GP": (HIGH, False)}
    differ = 0
    for key, (fmt, saturates) in low.items():
        x = hard_values(2.0 ** (2 - 2 ** (fmt.exponent - 1) - fmt.mantissa - fmt.bias))
        expected = rounded(x, fmt, saturates)
        assert_bit_equal(table.rounded(x, key), expected, key)
        assert not (expected.view(torch.int32) == -(2**31)).any()
        assert_bit_equal(table.rounded(x.clone(), key, in_place=True), expected, key)
        exact = assign(model, F.cross_entropy, demoted(model, batch))._table.rounded(x, key)
        differ += int((exact != expected).sum())
        # A value just under a tie goes up.
        assert ((exact == expected) | (expected.abs() > exact.abs())).all()
    assert differ
    assert table.rounded(torch.tensor([torch.nan]), "0.Y").isnan().all()


def test_gradients_of_log_softmax_and_sigmoid_are_functions_of_the_stored_result() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), torch.randn(8, 6)
    assigned = released(model, (x, torch.arange(8) % 5))
    seen = seen_by(assigned)
    (assigned(x, torch.arange(8) % 5) * 1024).backward()
    before = {key: values[0] for key, *values in seen}
    after = {key: values[1] for key, *values in seen}
    grad, y = after["loss.log_softmax.GY"], after["loss.log_softmax.Y"]
    assert_bit_equal(before["1.GY"], grad - torch.exp(y) * grad.sum(1, keepdim=True), "1.GY")
    grad, y = after["1.GY"], after["1.Y"]
    assert_bit_equal(before["0.GY"], grad * (1 - y) * y, "0.GY")


def test_a_module_of_logarithms_and_relu_in_place_give_the_same_bits() -> None:
    torch.manual_seed(0)
    first, last, relu = nn.Linear(6, 9, bias=False), nn.Linear(9, 5), nn.ReLU()
    batch = 1e-4 * torch.randn(8, 6), torch.arange(8) % 5
    results = []
    for model, loss in (
        (nn.Sequential(first, relu, last), F.cross_entropy),
        (nn.Sequential(first, nn.ReLU(inplace=True), last, nn.LogSoftmax(1)), F.nll_loss),
    ):
        # ReLU reads a result of high precision, and rounds some of its own to 0.
        made = released(model, batch, loss=loss).assignment.promoted(["0.Y", "input.Y"])
        assigned = assign(model, loss, made, **RELEASE)
        seen = seen_by(assigned)
        results.append(gradients(assigned, batch))
        assert any(((x > 0) & (y == 0)).any() for key, x, y in seen if key == "1.Y")
    assert_bit_equal(results[1][0], results[0][0], "loss")
    same(results[1][1], results[0][1])
    # Gradients pass where a result was rounded to 0: nothing of the first weights' is zero.
    assert (results[0][1]["0.weight"] != 0).all()


def test_tests_round_results_and_read_the_parameters_as_they_are() -> None:
    torch.manual_seed(0)
    model, batch = nn.Linear(6, 5), (torch.randn(8, 6), torch.arange(8) % 5)
    assigned = released(model, batch)
    linear = F.linear(rounded(batch[0], LOW["Y"], True), model.weight, model.bias)
    expected = rounded(linear, LOW["Y"], True)
    assert_bit_equal(assigned.output(batch[0]), expected.detach(), "output")
    default = assign(model, F.cross_entropy, demoted(model, batch)).output(batch[0])
    assert not torch.equal(default, expected)


def overflowing(count: int, value: float = 100.0) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A layer, and an input of 200 elements with so many overflows."""
    torch.manual_seed(0)
    x = torch.rand(10, 20)
    x.view(-1)[:count] = value
    return nn.Linear(20, 10), (x, torch.arange(10))


def test_a_step_is_followed_by_the_promotions_of_its_own_counts() -> None:
    # 2 / 200 in float32 is float32's 0.01, which lies below the 0.01 of float64.
    for count, expected in ((2, ("input.Y",)), (1, ())):
        model, batch = overflowing(count)
        assigned = released(model, batch)
        assigned(*batch).backward()
        assert assigned.step() == expected
        assert assigned.state_dict()["waiting"] is None
    model, batch = overflowing(2, torch.nan)
    assigned = released(model, batch)
    assert assigned(*batch).isnan()
    assert "input.Y" in assigned.step()


def test_a_loop_tells_the_ratio_after_the_promotions() -> None:
    model, batch = overflowing(2)
    assigned = released(model, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    (result,) = train_with_assignment(assigned, optimizer, [batch])
    assert result.promoted == ("input.Y",) and result.ratio == assigned.assignment.ratio < 1


def test_memory_is_as_predicted_and_an_audit_finds_no_departure() -> None:
    torch.manual_seed(0)
    model = build_model("lee-shufflenetv2", Task("images", (3, 8, 8), 10), width=10)
    batch = torch.randn(4, 3, 8, 8), torch.arange(4)
    ops = trace(model, F.cross_entropy, batch, **RELEASE)
    made = demote(group(ops), 0.5, **RELEASE)
    assigned = assign(model, F.cross_entropy, made, **RELEASE)
    assigned(*batch).backward()
    assert kept_memory(ops, made) == assigned.memory()
    assert audit(assigned, batch).departures == ()


def test_the_baselines_train_like_the_release_too() -> None:
    model, batch = seeded_chain()
    ops = trace(model, F.cross_entropy, batch, **RELEASE)
    for made in (uniform(ops), operator_based(ops)):
        assigned = assign(model, F.cross_entropy, made, promote=None, **RELEASE)
        assigned(*batch).backward()
        assert assigned.step() == ()


def _refused(options: dict[str, Any], **more: Any) -> Any:
    def call() -> None:
        model, batch = seeded_chain()
        ops = trace(model, F.cross_entropy, batch, like=more.get("traced", "release"))
        made = uniform(ops, formats=more.get("formats", Formats()))
        promote = options.get("promote", 0.01)
        given = {**options, "promote": Promoter(made) if promote == "own" else promote}
        assign(model, F.cross_entropy, made, **given)

    return call


test_options_that_contradict_are_refused = refused(
    [
        (_refused({**RELEASE, "fan_out": "sum"}), r'like="release" rounds each share.*"sum"'),
        (_refused({**RELEASE, "promote": "own"}), "got a Promoter; give promote as a number"),
        (_refused(RELEASE, traced=None), "a trace with like=None, got like='release'; give"),
        (_refused({}), "a trace with like='release', got like=None; give the same"),
        (_refused({"like": "paper"}), "assign: like must be None or \"release\", got 'paper'"),
        *(
            (_refused(RELEASE, formats=formats), rf'like="release" rounds {kind} to nearest.*{got}')
            for kind, got, formats in (
                ("activation", "e8m7", Formats(activation="bf16:nearest_away")),
                ("weight", "e4m3none_sat", Formats(weight="e4m3none_sat:nearest_even")),
                ("grad_weight", "e5m2none_sat", Formats(grad_weight="e5m2none_sat:nearest_away")),
            )
        ),
    ],
    ValueError,
)
