"""The cost model: the savings of the paper's tables, to four digits."""

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.techniques.cpt import Schedule, adder_bits, bitops, named_schedule, saving
from lpkernels.techniques.cpt.cost import occupancy
from tests.loops import each

# Bits, backward bits, mean bits, relative cost, static cost, saving in per cent.
PUBLISHED = [
    ((3, 8), 8, 5.499, 0.039579, 0.0625, 36.67),
    ((3, 6), 6, 4.499, 0.024593, 0.035156, 30.05),
    ((3, 4), 6, 3.5, 0.017741, 0.020833, 14.84),
    ((4, 8), 8, 5.999, 0.043683, 0.0625, 30.11),
    ((4, 6), 6, 5.0, 0.027883, 0.035156, 20.69),
    ((4, 6), 8, 5.0, 0.034392, 0.042969, 19.96),
    ((5, 8), 8, 6.499, 0.048028, 0.0625, 23.16),
    ((5, 6), 8, 5.5, 0.038574, 0.042969, 10.23),
]


# The cost of 64,000 steps in 32 cycles is that of one cycle.
CYCLE = 2000


def mean_cost(plan: np.ndarray, backward: int) -> float:
    return sum(share * bitops(bits, backward) for bits, share in occupancy(plan).items())


@each("bits, backward, mean, relative, static, percent", PUBLISHED)
def test_savings_of_64000_steps(bits, backward, mean, relative, static, percent):
    assert Schedule(bits).cycles == 32
    plan = Schedule(bits, 1).plan(CYCLE)
    cost = mean_cost(plan, backward)
    assert plan.mean() == pytest.approx(mean, abs=6e-4)
    assert cost == pytest.approx(relative, abs=6e-7)
    assert bitops(bits[1], backward) == pytest.approx(static, abs=6e-7)
    assert round(100 * saving(cost, bitops(bits[1], backward)), 2) == percent


# Their relative cost and mean bits, in 8 cycles: two are a period of the triangular ones.
NAMED = [
    ("CR", 0.633, 5.5),
    ("LR", 0.628, 5.5),
    ("ER", 0.822, 6.83),
    ("ETH", 0.822, 6.83),
    ("ETV", 0.635, 5.5),
    ("RR", 0.399, 3.81),
    ("RTH", 0.399, 3.81),
    ("RTV", 0.637, 5.5),
]


@each("name, relative, mean", NAMED)
def test_cost_of_the_named_schedules(name: str, relative: float, mean: float) -> None:
    assert named_schedule(name, (3, 8)).cycles == 8
    plan = named_schedule(name, (3, 8), cycles=2).plan(2 * CYCLE)
    assert mean_cost(plan, 8) / bitops(8, 8) == pytest.approx(relative, abs=6e-4)
    assert plan.mean() == pytest.approx(mean, abs=6e-3)


def test_bits_of_one_step_and_one_addition() -> None:
    assert bitops(32, 32) == 1.0
    assert bitops(4, 8) == (16 + 64) / 3072
    assert bitops(4, 8, weight_bits=4) == bitops(4, 8)
    assert bitops(6, 8, weight_bits=2) == (12 + 16 + 48) / 3072
    # The bits of an adder are those of the significand.
    assert adder_bits("fp32") == 1.0
    assert adder_bits("e8m5") == 0.25
    assert adder_bits(Accumulator("e6m11", chunk=64, outer="fp32")) == 0.5
    assert adder_bits("fixed12_f4") == 0.5
