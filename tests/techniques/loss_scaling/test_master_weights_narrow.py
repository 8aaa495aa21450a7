"""The updates that narrow masters lose: draws, counts; the memory of masters and of a step."""

import weakref
import zlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lpkernels as lp
from lpkernels.rng import derive_seed
from lpkernels.techniques.loss_scaling import MasterWeights
from lpkernels.techniques.loss_scaling.masters.master import Master
from lpkernels.techniques.loss_scaling.masters.master_weights import Stagnation
from tests.compare import assert_bit_equal
from tests.techniques.loss_scaling import optimizers

pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")
STEPS = range(1, 6)


DRAWN: dict[str, Any] = {
    "weight": "e4m3fn:stochastic", "master": "e5m7:stochastic", "generator": torch.tensor(12345)
}  # fmt: skip


def drawn(x: torch.Tensor, fmt: str, step: int, parameter: int, purpose: int) -> torch.Tensor:
    """x rounded as docs/contract.md says: steps and parameters count from 0, keys from 1."""
    key = int(DRAWN["generator"])
    for part in (step + 1, parameter + 1, purpose):
        key = derive_seed(key, part)
    generator = torch.tensor(key - (key >> 63 << 64))
    return lp.quantize(x, fmt, "stochastic", generator=generator)


def test_draws_are_keyed_by_seed_step_parameter_purpose_and_index() -> None:
    """Masters are made in step 0; a skipped step does not count, and a parameter's number counts,
    not how many gradients come before it."""
    held = optimizers.parameters(shapes=[(40,), (3, 5)])
    given = held[1].detach().clone()
    formats = {"state": "e5m3:stochastic", "grad": "e5m9:stochastic"}
    optimizer = MasterWeights(
        torch.optim.SGD(held, lr=1.0, momentum=0.9),
        **{**DRAWN, **formats},
    )
    before = drawn(given, "e5m7", 0, 1, 2)
    assert_bit_equal(optimizers.masters(optimizer, held)[1], before)
    assert_bit_equal(held[1].detach(), drawn(before, "e4m3fn", 0, 1, 3))
    optimizers.set_gradients(held, 1)
    optimizers.flagged_step(optimizer, 1.0)
    held[0].grad = None
    optimizers.flagged_step(optimizer, 0.0)
    momentum = drawn(optimizers.gradient(held[1], 1, 1), "e5m9", 1, 1, 1)
    master = drawn(before - momentum, "e5m7", 1, 1, 2)
    assert_bit_equal(optimizers.masters(optimizer, held)[1], master)
    assert_bit_equal(held[1].detach(), drawn(master, "e4m3fn", 1, 1, 3))
    kept = drawn(momentum, "e5m3", 1, 1, 2**32 + zlib.crc32(b"momentum_buffer"))
    assert_bit_equal(optimizer.state[held[1]]["momentum_buffer"], lp.pack(kept, "e5m3"))


def test_one_seed_is_drawn_and_follows_manual_seed() -> None:
    ends = []
    for start in (1, 1, 2):
        torch.manual_seed(start)
        before = torch.get_rng_state()
        held = optimizers.parameters()
        optimizer = optimizers.wrapped("sgd", held, weight="e5m2:stochastic")
        after = torch.get_rng_state()
        optimizers.train(optimizer, held, STEPS)
        assert not torch.equal(before, after)
        assert torch.equal(after, torch.get_rng_state())
        ends.append(held[0].detach())
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_stagnation_is_what_a_count_finds(rounding: str) -> None:
    (p,) = optimizers.parameters(shapes=[(31, 17)])
    inner = torch.optim.SGD([p], lr=0.05, momentum=0.9)
    optimizer = MasterWeights(inner, weight="fp32", master=f"e5m3:{rounding}")
    asked = unchanged = 0
    buffer = torch.zeros_like(p)
    for step in STEPS:
        (before,) = optimizers.masters(optimizer, [p])
        optimizers.train(optimizer, [p], [step])
        (after,) = optimizers.masters(optimizer, [p])
        buffer = p.grad.clone() if step == 1 else buffer * 0.9 + p.grad
        wants = (p.grad != 0) | (before.add(buffer, alpha=-0.05) != before)
        asked += int(wants.sum())
        unchanged += int((wants & (before == after)).sum())
    assert 0 < unchanged < asked < 5 * p.numel()
    assert optimizer.stagnation() == {"0": Stagnation(asked, unchanged)}
    assert optimizer.stagnation()["0"].share == unchanged / asked
    optimizer.reset_stagnation()
    assert optimizer.stagnation()["0"] == Stagnation(0, 0)
    assert optimizer.stagnation()["0"].share == 0.0


N = 100 * 96
FP8_STATE = {"exp_avg": "e5m2", "exp_avg_sq": "e8m3"}
# With the bits of a value beside the working copy: master and two states.
CASES: list[tuple[dict[str, Any], float]] = [
    ({"weight": "e4m3fn", "master": "e6m9", "state": FP8_STATE}, 16 + 8 + 12),
    ({"weight": "block32_e2m1", "state": "block32_e4m3"}, 32 + 2 * (8 + 8 / 32)),
    ({"weight": "bf16", "master": "bf16"}, 0 + 64),
    ({"weight": "e3m1", "master": "fixed13_f10", "state": "e5m5"}, 13 + 2 * 11),
]


@pytest.mark.parametrize("formats, of_value", CASES)
def test_bytes_are_those_of_the_formats(formats: dict[str, Any], of_value: float) -> None:
    p = nn.Parameter(torch.randn(100, 96))
    optimizer = MasterWeights(torch.optim.Adam([p], lr=1e-3), **formats)
    optimizers.train(optimizer, [p], [1])
    kept = [x for name, x in optimizer.state[p].items() if name not in ("counts", "step")]
    assert sum(x.untyped_storage().nbytes() for x in kept) == of_value * N / 8


def test_a_second_moment_in_four_bits_without_a_zero() -> None:
    """The steps are Adam's with a moment that is rounded after each; also after a resume."""
    fmt, shapes = "block128_linear4_sfp32", [(5, 300), (13,), ()]
    bare, held = optimizers.parameters(shapes=shapes), optimizers.parameters(shapes=shapes)
    alone = torch.optim.Adam(bare, lr=0.01)
    formats = {"weight": "fp32", "state": {"exp_avg_sq": fmt}}
    optimizer = MasterWeights(torch.optim.Adam(held, lr=0.01), **formats)
    for step in range(1, 11):
        for number, (p, q) in enumerate(zip(held, bare, strict=True)):
            p.grad = optimizers.gradient(p, number, step)
            # Blocks of zeros stay zero.
            p.grad.view(-1)[300:600] = 0
            q.grad = p.grad.clone()
        optimizer.step()
        alone.step()
        for p, q in zip(held, bare, strict=True):
            assert_bit_equal(p.detach(), q.detach(), str(step))
            moment = alone.state[q]["exp_avg_sq"]
            moment.copy_(lp.quantize(moment, fmt))
        if step == 4:
            state = optimizer.state_dict()
            optimizer = MasterWeights(torch.optim.Adam(held, lr=0.01), **formats)
            optimizer.load_state_dict(state)
    kept = [optimizer.state[p]["exp_avg_sq"] for p in held]
    assert [len(codes) for codes in kept] == [15 * 4 + 750, 4 + 7, 4 + 1]


class Peak(TorchDispatchMode):
    """The most bytes of new tensors that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in storages(result):
            if (key := storage._cdata) not in self.seen | given:
                self.seen.add(key)
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._free, key, storage.nbytes())
        return result

    def _free(self, key: int, count: int) -> None:
        self.seen.discard(key)
        self.alive -= count


def storages(values: Any) -> list[torch.UntypedStorage]:
    return [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def test_the_fused_pass_unpacks_nothing() -> None:
    held = optimizers.parameters(shapes=[(100, 96)] * 3)
    formats = {"weight": "bf16", "master": "e6m9", "state": "fp8_e5m2"}
    optimizer = MasterWeights(torch.optim.SGD(held, lr=0.1, momentum=0.9), **formats, fused=True)
    for number in range(2):
        optimizers.set_gradients(held, number)
        with Peak() as mode:
            optimizer.step()
    # Only the number and the seed of the step take memory.
    assert mode.peak < 1000


@pytest.mark.parametrize("state", ["bf16", "block32_e4m3"])
def test_the_general_path_unpacks_one_parameter_at_a_time(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Master.__module__}._FEW", 100 * 96)
    peaks = []
    for count in (1, 6):
        held = optimizers.parameters(shapes=[(100, 96)] * count)
        formats = {"weight": "bf16", "master": "e6m9", "state": state, "fused": False}
        optimizer = MasterWeights(torch.optim.Adam(held), **formats)
        for number in range(2):
            optimizers.set_gradients(held, number)
            with Peak() as mode:
                optimizer.step()
        peaks.append(mode.peak)
    assert peaks[1] < 1.1 * peaks[0]
