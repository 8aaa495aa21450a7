"""A step under an assignment in one compiled graph: the same bits, and no compiling anew."""

import copy
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

from lpkernels.functional.unchecked import keeps_codes
from lpkernels.techniques.assignment import Assigned, Formats, assign, trace, uniform
from lpkernels.techniques.assignment.running import assigned as module
from lpkernels.techniques.assignment.running._traced import Traced
from tests.compare import assert_bit_equal
from tests.support.compiling import fresh_compiler  # noqa: F401
from tests.support.computes import Computes
from tests.techniques.assignment.networks import chain_batch, chain_model
from tests.techniques.assignment.running.runs import SCALE, assigned_of

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def step(run: Any, assigned: Assigned, batch: Any) -> tuple[Tensor, tuple[str, ...]]:
    assigned.model.zero_grad()
    value = run(*batch)
    (value * SCALE).backward()
    return value.detach(), assigned.step()


def pair(name: str, ratio: float = 0.6, gain: float | None = None) -> Any:
    """A batch, and twice the model under an assignment: to run as it is, and to compile."""
    torch.manual_seed(1)
    model, batch = NETWORKS[name]()
    if gain is not None:
        torch.nn.init.constant_(model[1].weight, gain)
        torch.nn.init.constant_(model[1].bias, gain)
    return batch, *(assigned_of(model, batch, ratio) for _ in range(2))


def same_gradients(one: Assigned, other: Assigned) -> None:
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert_bit_equal(p.grad, q.grad)


def functions(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    y = torch.sigmoid(y) + torch.tanh(y).softmax(-1)
    y += 1
    return m.head(nn.functional.relu(y - 1.5, inplace=True)) @ m.head.weight


SMALL = (torch.randn(4, 6), torch.arange(4))
NETWORKS: dict[str, Any] = {
    "layers": lambda: (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5)), SMALL),
    "chain": lambda: (chain_model(), chain_batch()),
    "functions": lambda: (
        Computes(functions, first=nn.Linear(6, 5), head=nn.Linear(5, 5)), SMALL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["chain", "functions"])
def test_a_compiled_step_has_the_bits_of_the_step(name: str) -> None:
    batch, eager, compiled = pair(name)
    run = compiled.compiled(*batch, backend="aot_eager")
    for _ in range(2):
        one, other = step(eager, eager, batch), step(run, compiled, batch)
        assert_bit_equal(other[0], one[0])
    same_gradients(compiled, eager)
    assert compiled.counts == eager.counts


def test_a_compiled_step_rounds_no_gradient_of_the_loss_either() -> None:
    def loss(y: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(y, t) + y.square().mean()

    torch.manual_seed(1)
    model, batch = nn.Linear(6, 5), (torch.randn(32, 6), torch.arange(32) % 5)
    formats = Formats(grad_activation=("fp_6_9_0", "fp_5_2_0_backward:stochastic"))
    made = uniform(trace(model, loss, batch), formats=formats)
    eager, compiled = (assign(copy.deepcopy(model), loss, made, promote=None) for _ in range(2))
    run = compiled.compiled(*batch, backend="aot_eager")
    for each, assigned in ((eager, eager), (run, compiled)):
        torch.manual_seed(2)
        (each(*batch) * 2.0**20).backward()
        assigned.step()
    assert eager.model.weight.grad.isfinite().all()
    same_gradients(compiled, eager)
    for assigned in (eager, compiled):
        assigned.step()
    assert compiled.counts == eager.counts
    assert not any(f"loss.{op}.GY" in eager.counts for op in ("add", "nll_loss", "mean"))


def codes_kept_by(partition: Any) -> Any:
    """A backend that runs the graphs as they are, cut by this partitioner."""
    return aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def test_what_a_compiled_step_keeps_are_codes_as_wide_as_high_precision(monkeypatch: Any) -> None:
    (x, target), eager, compiled = pair("chain")
    bits = compiled._table.code_bits()
    assert set(bits.values()) == {16}
    monkeypatch.setattr(module, "Traced", lambda *given: Traced(*given[:-1], bits))
    run = compiled.compiled(x, target, backend=codes_kept_by(keeps_codes()))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = run(x, target)
    (loss * SCALE).backward()
    assert not compiled.overflowed
    assert_bit_equal(loss.detach(), step(eager, eager, (x, target))[0])
    same_gradients(compiled, eager)
    # An element takes two bytes, and nothing in float32 is larger than the statistics of a norm.
    assert sum(t.numel() for t in kept if t.dtype == torch.uint8) > 2 * 3000
    assert max(t.numel() for t in kept if t.is_floating_point()) == 8
    # NaN has no code.
    x[0, 0, 0, 0] = torch.nan
    (run(x, target) * SCALE).backward()
    assert compiled.overflowed
    assert compiled.model[8].bias.grad.isnan().any()


def test_a_promotion_compiles_nothing_and_changes_the_formats():
    batch, eager, compiled = pair("chain", gain=20)
    counter = CompileCounterWithBackend("aot_eager")
    run = compiled.compiled(*batch, backend=counter)
    overflowing = []
    for _ in range(4):
        one, other = step(eager, eager, batch), step(run, compiled, batch)
        assert_bit_equal(other[0], one[0])
        assert other[1] == one[1]
        overflowing.append(compiled.counts["1.Y"].overflow if compiled.counts else -1)
    assert compiled.promotions == eager.promotions != []
    # The counts are those of the step before; the third step is the first in another format.
    assert overflowing[0] == -1
    assert overflowing[1] == overflowing[2] > overflowing[3] == 0
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers", "chain"])
def test_inductor_compiles_it_too(name: str) -> None:
    # This takes 15 seconds and more, most of which the C++ compiler that inductor starts takes.
    batch, eager, compiled = pair(name, 1.0)
    one, other = (step(eager, eager, batch), step(compiled.compiled(*batch), compiled, batch))
    torch.testing.assert_close(other[0], one[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        # Dynamo (torch 2.13) does not tell a mode of calls of torch.relu_.
        (lambda m, x: torch.relu_(m.linear(x) + 1),
         r"torch\.compile does not call 'relu_' as the model does"),
        (lambda m, x: nn.functional.scaled_dot_product_attention(*[m.linear(x)[:, None]] * 3)[:, 0],
         "scaled_dot_product_attention in one call is not compiled"),
    ],
)  # fmt: skip
def test_what_is_not_compiled_is_an_error(function: Any, match: str) -> None:
    assigned = assigned_of(Computes(function, linear=nn.Linear(6, 6)), SMALL, 0.6)
    with pytest.raises(Exception, match=match):
        assigned.compiled(*SMALL, backend="eager")(*SMALL)


def test_what_is_compiled_is_for_batches_such_as_the_first():
    (x, target), assigned, _ = pair("chain")
    run = assigned.compiled(x, target, backend="eager")
    with pytest.raises(ValueError, match="compiled for batches of other sizes"):
        run(x[:2], target[:2])
    assigned.model.eval()
    with pytest.raises(ValueError, match="or for other modes"):
        run(x, target)
    branches = assigned_of(chain_model(), (x, target), 0.6, fan_out="branches")
    with pytest.raises(ValueError, match='compiled needs fan_out="sum", got "branches"'):
        branches.compiled(x, target)
