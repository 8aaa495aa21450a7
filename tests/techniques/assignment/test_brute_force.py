"""Groups, demotion and promotion against their definitions, by enumeration over drawn networks."""

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.assignment import Op, Pins, Promoter, TensorSpec, demote, group
from lpkernels.techniques.assignment.graph import Group
from tests.techniques.assignment.networks import homes

# Bits of the paper's formats, high and low, by the end of a key.
BITS = {"P": (16, 8), "Y": (16, 8), "GY": (16, 8), "GP": (16, 16)}


@st.composite
def networks(draw: st.DrawFn) -> list[Op]:
    """Operations that read earlier ones, some with parameters, some shared, some unknown."""
    sizes = st.integers(0, 9) | st.integers(0, 2**60)
    shared = draw(sizes)
    ops = [Op("op0", draw(st.booleans()), (), {}, draw(sizes))]
    for i in range(1, draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True))
        params = {f"w{k}": draw(sizes) for k in range(draw(st.integers(0, 2)))}
        if draw(st.booleans()):
            params[".shared"] = shared
        reads = tuple(f"op{k}" for k in inputs)
        known = draw(st.sampled_from([True, True, False]))
        ops.append(Op(f"op{i}", draw(st.booleans()), reads, params, draw(sizes), known=known))
    return ops


@given(networks())
def test_a_group_begins_at_every_input_and_gemm_and_has_the_weights_that_read_it(ops):
    opens = [not i or op.is_gemm or not (op.inputs or op.params) for i, op in enumerate(ops)]
    results = {op.name: sum(opens[: i + 1]) - 1 for i, op in enumerate(ops)}
    want: dict[str, int] = {}
    for op in ops:
        want |= {f"{op.name}.Y": results[op.name], f"{op.name}.GY": results[op.name]}
        home = results[op.inputs[0] if op.inputs else op.name]
        for name in op.params:
            full = name[1:] if name.startswith(".") else f"{op.name}.{name}"
            # The first Op that reads a shared parameter places it.
            want = {f"{full}.P": home, f"{full}.GP": home} | want
    assert homes(group(ops)) == want


def ranks(groups: tuple[Group, ...], order: str) -> dict[int, Any]:
    """What the groups are sorted by."""
    draws = random.Random(5)
    by_order = {
        "decreasing": lambda home: (-sum(t.numel for t in home.tensors), home.index),
        "increasing": lambda home: (sum(t.numel for t in home.tensors), home.index),
        "random": lambda home: draws.random(),
    }
    return {home.index: by_order[order](home) for home in groups}


def prefixes(groups: tuple[Group, ...], order: str) -> Iterator[set[int]]:
    """Of all sets of groups, smallest first, those before which no other group ranks."""
    rank = ranks(groups, order)
    for size in range(len(groups) + 1):
        for chosen in map(set, combinations(rank, size)):
            others = rank.keys() - chosen
            if all(rank[i] < rank[j] for i in chosen for j in others):
                yield chosen


def saved_bits(tensor: TensorSpec) -> int:
    high, low = BITS[tensor.key.rpartition(".")[2]]
    return tensor.numel * (high - low)


@given(
    networks(), st.data(), st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["decreasing", "increasing", "random"]),
)  # fmt: skip
def test_demotion_takes_the_smallest_prefix_of_all_that_is_enough(ops, data, ratio, order):
    groups = group(ops)
    tensors = [tensor for home in groups for tensor in home.tensors]
    pins = {t.key: data.draw(st.sampled_from([None] * 6 + ["high", "low"])) for t in tensors}
    pins |= {t.key: "high" for t in tensors if not t.known}
    keys = {side: [t.key for t in tensors if t.known and pins[t.key] == side]
            for side in ("high", "low")}  # fmt: skip
    options: dict[str, Any] = {"order": order, "pins": Pins(**keys)}
    options |= {"seed": 5} if order == "random" else {}

    def low_tensors(chosen: set[int]) -> list[TensorSpec]:
        low = (t for t in tensors if pins[t.key] == "low" or t.group in chosen)
        return [t for t in low if pins[t.key] != "high"]

    def assert_chosen(assignment: Any, enough: Any) -> None:
        low, chosen = next(
            (low_tensors(chosen), chosen)
            for chosen in prefixes(groups, order)
            if enough(low_tensors(chosen)) or len(chosen) == len(groups)
        )
        assert assignment.low == {t.key for t in low}
        assert assignment.low_numel == sum(t.numel for t in low)
        assert assignment.bits == most_bits - sum(map(saved_bits, low))
        rank = ranks(groups, order)
        free = [i for i in chosen if any(t.group == i and not pins[t.key] for t in tensors)]
        assert assignment.low_groups == tuple(sorted(free, key=rank.__getitem__))

    total = sum(t.numel for t in tensors)
    most_bits = 16 * total
    assert_chosen(
        demote(groups, ratio, **options),
        lambda low: sum(t.numel for t in low) >= Fraction(ratio) * total,
    )
    least_bits = most_bits - sum(map(saved_bits, low_tensors({home.index for home in groups})))
    budget = data.draw(st.integers(least_bits, most_bits))
    assert_chosen(
        demote(groups, bits=budget, **options),
        lambda low: most_bits - sum(map(saved_bits, low)) <= budget,
    )


THRESHOLDS = st.sampled_from([0.01, 0.0, 1.0, None])
OVERFLOWS = st.sampled_from([0.0, 0.009999999999999998, 0.01, 0.02, 1.0])


@given(networks(), st.data(), THRESHOLDS, st.integers(0, 4))
def test_a_tensor_is_promoted_at_its_first_step_with_enough_overflows(ops, data, threshold, steps):
    groups = group(ops)
    known = [t.key for home in groups for t in home.tensors if t.known]
    pinned = [key for key in known if data.draw(st.booleans())]
    start = demote(groups, data.draw(st.floats(0, 1)), pins=Pins(low=pinned))
    keys = list(start.tensors)
    overflows = [
        {key: data.draw(OVERFLOWS) for key in keys if data.draw(st.booleans())}
        for _ in range(steps)
    ]
    promoter = Promoter(start, threshold)
    returned = [promoter.update(overflow) for overflow in overflows]
    first = {
        key: min((step for step, overflow in enumerate(overflows)
                  if threshold is not None and overflow.get(key, -1.0) >= threshold), default=None)
        for key in keys
        # Gradients overflow to infinity, for the loss scaler.
        if key.rpartition(".")[2] in ("P", "Y") and key in start.low and key not in pinned
    }  # fmt: skip
    want = [tuple(key for key in keys if first.get(key) == step) for step in range(steps)]
    assert returned == want
    assert promoter.promotions == [
        (step, key, overflows[step][key]) for step in range(steps) for key in want[step]
    ]
    promoted = {key for keys in want for key in keys}
    assert promoter.assignment.low == start.low - promoted
    assert start.bits == promoter.assignment.bits - 8 * sum(
        start.tensors[key].numel for key in promoted
    )
