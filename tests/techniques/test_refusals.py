"""What the functions of techniques refuse: the error's type, and the name or the value that its
message must contain. Objects with state and what makes them are in test_state.py."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques import accumulation, cpt, pareto
from lpkernels.techniques.accumulation import measure, min_mantissa_bits, vrr
from lpkernels.techniques.assignment import Formats, Op, Pins, assign, demote, group, trace
from lpkernels.techniques.cpt import bitops, parse_schedule, recalibrate
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, training_memory
from tests.support.refusals import refused
from tests.techniques.assignment.networks import chain, demoted
from tests.techniques.pareto.matrices import BASIS, HIDDEN, RANK_ONE, TRAINED, low_rank, mask_of

pytestmark = pytest.mark.filterwarnings("ignore:.*NaN")

NAN, INF = math.nan, math.inf
# Of accumulation.
LAYER, X = nn.Linear(4, 4), torch.ones(2, 4)
ON_META, NOTHING = nn.Linear(4, 4, device="meta"), torch.empty(2, 4, device="meta")
plan = partial(accumulation.plan, loss=lambda y: y.square().mean(), operand="e4m3")
# Of assignments.
GROUPS = group(chain(loss_numel=4))
UNKNOWN = group([Op("in", False, (), {}, 4, known=False)])
A, B = Op("a", False, (), {".w": 3}), Op("b", False, ("a",), {".w": 4})
BATCH = (torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
ROUNDED = nn.Sequential(nn.Linear(4, 3))
# Of spaces of formats: errors of four tasks in six configurations, some of them hidden.
MASK = mask_of(RANK_ONE.shape, HIDDEN)
NO_ROW = MASK & (np.arange(4) != 2)[:, None]
SMALL, ERRORS = FormatSpace(["e4m3", "e5m2"], ["bf16"]), np.full((2, 2, 2), 0.5)
COUNTS = {"params": 1000, "activations": 500, "inputs": 64, "outputs": 10}
COST, MEMORY, ERROR = np.arange(1.0, 7.0), np.array([1.0, 2, 3, 4]), np.array([0.9, 0.5, 0.4, 0.2])
NOISY = low_rank(14, 20, 2, noise=0.03)
EMPTY = np.where((np.arange(20) == 5) & (np.arange(14) > 0)[:, None], NAN, NOISY)
EMBEDDED, OTHERS = pareto.embed(TRAINED, 2), pareto.embed(NOISY[1:], 2)

bits_at = partial(cpt.bits_at, total=40, bits=(3, 8))
complete = partial(pareto.complete, rank=1, lam=0.1)
select, predict = partial(pareto.select, BASIS), partial(pareto.predict, EMBEDDED)
study = partial(
    pareto.leave_one_out, NOISY, np.linspace(1, 2, 20), methods=["greedy"], counts=[3], rank=2
)


def of_axis(kind: str, axis: int) -> None:
    """A step under formats along an axis."""
    formats = Formats(**{kind: f"affine8_axis{axis}"})
    assignment = demoted(ROUNDED, BATCH, 0.0, formats=formats)
    assign(ROUNDED, cross_entropy, assignment, promote=None)(*BATCH)


test_wrong_values_are_refused = refused(
    [
        (lambda: vrr(0, 5, 64), "m_acc: .*got 0"),
        (lambda: vrr(7, 5, 0), "n: .*got 0"),
        (lambda: vrr(7, 5, 64, nzr=1.5), "nzr: .*got 1.5"),
        (lambda: min_mantissa_bits(64, 5, chunk=0), "chunk"),
        (lambda: min_mantissa_bits(64, 5, rounding="toward_zero"), "rounding"),
        (lambda: min_mantissa_bits(64, 5, cutoff=1.0), "cutoff"),
        (lambda: min_mantissa_bits(2**40, 5, eps=1e-40, metric="nmse"), "eps|at most 52"),
        (lambda: measure(X, X, "e5m4"), r"b \(K, N\)"),
        (lambda: measure(X * INF, X.t(), "e5m4"), "a holds"),
        (lambda: measure(X, X.t(), "e5m4", counted=-1), "counted"),
        (lambda: plan(LAYER, X, loss=lambda y: y), "loss"),
        (lambda: plan(LAYER, X, loss=lambda y: 1.0), "loss"),
        (lambda: plan(LAYER, X, operand="e5m99"), "operand"),
        (lambda: plan(LAYER, X, chunk=0), "chunk"),
        (lambda: plan(LAYER, X, margin=-1), "margin"),
        (lambda: plan(LAYER, X, exp_bits=9), "exp_bits"),
        (lambda: plan(LAYER, X, rounding="toward_zero"), "rounding"),
        (lambda: plan(LAYER, X, batch=0), "batch"),
        (lambda: plan(LAYER, X[0], batch=8), "4 examples"),
        (lambda: plan(ON_META, X), "weight is on the meta device"),
        (lambda: plan(LAYER, NOTHING), "sample is on the meta device"),
        (lambda: plan(ON_META, NOTHING, headroom=0), "headroom=0"),
        (lambda: demote(GROUPS, 1.1), "ratio"),
        (lambda: demote(GROUPS), "ratio=None and bits=None"),
        (lambda: demote(GROUPS, 0.5, bits=5), "ratio=0.5"),
        (lambda: demote(GROUPS, bits=90191), "bits=90,191 .* 90,192"),
        (lambda: demote(GROUPS, 0.5, order="size"), "order"),
        (lambda: demote(GROUPS, 0.5, order="random"), "seed=None"),
        (lambda: demote(GROUPS, 0.5, seed=1), "seed=1"),
        (lambda: demote(GROUPS, 0.5, pins=Pins(high="conv9.*")), r"high='conv9.\*'"),
        (lambda: demote(GROUPS, 0.5, pins=Pins(high="in.*", low="in.Y")), "'in.Y'"),
        (lambda: demote(UNKNOWN, 0.5, pins=Pins(low="in.Y")), "'in.Y'"),
        (lambda: group([]), "one Op"),
        (lambda: group([A, A]), "'a'"),
        (lambda: group([B]), "'b' reads 'a'"),
        (lambda: group([A, B]), "parameter 'w'"),
        (lambda: Op("", False, ()), "name"),
        (lambda: Op("a", False, (), {}, -1), "elements of the result"),
        (lambda: Formats(weight=("fp16",)), "weight"),
        (lambda: Formats(weight=("fp8_e5m2", "fp16")), "e5m10 has 16 bits"),
        (lambda: Formats(weight="float8"), "weight"),
        (lambda: Formats(activation=("fp16", lp.BlockFormat("fp4_e2m1", 32))), "activation"),
        (lambda: of_axis("weight", 1), r"axis1 .*0\.bias\.P"),
        (lambda: of_axis("activation", -3), r"axis -3, but input\.Y"),
        (lambda: trace(LAYER, lambda y, t: y, (X, X.clone())), r"the loss .*\(2, 4\)"),
        (lambda: trace(LAYER, lambda y, t: 3.0, (X, X.clone())), "the loss .* float"),
        (lambda: trace(LAYER, lambda y, t: t.sum(), (X, X.clone())), "the loss does not depend"),
        (lambda: bits_at(0, bits=(8, 3)), "bits"),
        (lambda: bits_at(0, bits=(3, 33)), "bits"),
        (lambda: bits_at(0, cycles=41), "cycles=41"),
        (lambda: bits_at(-1), "step"),
        (lambda: bits_at(0, profile="cos"), "profile"),
        (lambda: bits_at(0, remainder="drop"), "remainder"),
        (lambda: bitops(0, 8), "bitops: forward_bits"),
        (lambda: bitops(8, 64), "bitops: backward_bits"),
        *(
            (partial(parse_schedule, text), f"the schedule {text!r}.*{word}")
            for text, word in (
                ("cpt", "<kind>"),
                ("cycle:3-8", "kinds"),
                ("cpt:3-8/8,cycle=3", "'cycle=3' .*cycles="),
                ("cpt:3-8/8,cycles=4,cycles=5", "cycles twice"),
                ("cpt:3-8/8,cycles=four", "'cycles=four'"),
                ("fall:3-8", "'bits=3-8' .* expected 8-3"),
                ("cpt:3-5-8", "'bits=3-5-8'"),
                ("cpt:3-8/", "'grad_bits='"),
                ("static:3-8", "'bits=3-8' .* expected 8"),
                ("pfq:3-8/6-6-8", "grad_bits"),
            )
        ),
        (lambda: recalibrate(nn.Linear(2, 2), [X]), "Linear"),
        (lambda: recalibrate(nn.BatchNorm1d(6), [torch.ones(2, 6)], 8), "set_precision"),
        (lambda: FormatSpace(["e4m3", "e4m3"], ["bf16"]), "low"),
        (lambda: ErrorMatrix(SMALL, ["a"], ERRORS), r"errors.*\(1, 2, 2\)"),
        (lambda: ErrorMatrix(SMALL, ["a", "a"], ERRORS), "distinct"),
        (lambda: ErrorMatrix(SMALL, ["a", "b"], ERRORS * INF), "inf"),
        (lambda: training_memory({"params": 1}, 8, 16), "params, activations"),
        (lambda: training_memory(COUNTS | {"params": -1}, 8, 16), r"counts\['params'\]"),
        (lambda: complete(RANK_ONE, NO_ROW), "row 2"),
        (lambda: complete(RANK_ONE, MASK, rank=5), "rank"),
        (lambda: complete(RANK_ONE, MASK, lam=-1), "lam"),
        (lambda: complete(RANK_ONE * 100, MASK), "clip="),
        (lambda: complete(RANK_ONE, MASK, clip=(1, 0)), "clip"),
        (lambda: complete(np.where(MASK, INF, 0), MASK), "inf at row 0, column 0"),
        (lambda: pareto.embed(TRAINED, 3), "rank=3"),
        (lambda: pareto.embed(np.where(TRAINED > 0.5, NAN, TRAINED), 1), r"nan .* complete\("),
        (lambda: pareto.embed(np.zeros((3, 6)), 1), "rank 0"),
        (lambda: predict([0], [1]), "1 measurements of rank 1"),
        (lambda: predict([0, 1], [0.1]), "errors"),
        (lambda: predict([0, 1], [NAN, NAN]), "NaN"),
        (lambda: select(), "n, .* cost and budget"),
        (lambda: select(n=7), "n: "),
        (lambda: select(budget=3), "cost"),
        (lambda: select(cost=COST, budget=0.5), r"budget of 0\.5"),
        (lambda: select(n=2, method="best"), "method"),
        (lambda: select(n=2, measured=[9]), "measured: .*got 9"),
        (lambda: select(n=1, measured=range(6)), "measured"),
        (lambda: pareto.select(np.vstack([BASIS, BASIS[:1]]), n=2), "dimensions"),
        (lambda: pareto.select(BASIS * NAN, n=1), "y: "),
        (lambda: pareto.choose(MEMORY, ERROR, 0.5), r"cap of 0\.5 .* 1"),
        (lambda: pareto.choose(MEMORY, [NAN, *ERROR[1:]], 1.5), "cheapest configuration's 2"),
        (lambda: pareto.pareto_front(MEMORY, ERROR * NAN), "NaN"),
        (lambda: pareto.pareto_front(MEMORY * INF, ERROR), "memory: .*inf at index 0"),
        (lambda: pareto.pareto_front(MEMORY, ERROR * INF), "finite or NaN"),
        (lambda: pareto.hypervolume(MEMORY, ERROR, (6, 1, 1)), "reference"),
        (lambda: study(methods=["best"]), "methods"),
        (lambda: study(counts=[21]), "counts .* got 21"),
        (lambda: study(rank=14), "rank"),
        (lambda: study(cap=1.05), "cap"),
        (lambda: pareto.leave_one_out(EMPTY, *study.args[1:], **study.keywords), "column 5"),
    ],
    ValueError,
)  # fmt: skip
test_wrong_types_are_refused = refused(
    [
        (lambda: measure(X.double(), X.t(), "e5m4"), "a must be float32.*lp.quantize"),
        (lambda: measure(X, None, "e5m4"), "b must"),
        (lambda: plan(LAYER, X, chunk=1.5), "chunk"),
        (lambda: plan(LAYER, X, headroom=1.0), "headroom"),
        (lambda: plan(LAYER, X, batch=2.5), "batch"),
        (lambda: plan(lambda x: x, X), "torch.nn.Module"),
        (lambda: demote(chain(), 0.5), r"group\(ops\)"),
        (lambda: group(["conv"]), "Ops, got str"),
        (lambda: Op("a", False, "b"), "inputs"),
        (lambda: Formats(activation=("fp16", 8)), "activation"),
        (lambda: trace(LAYER, cross_entropy, X), r"batch .*got Tensor"),
        (lambda: trace(LAYER, cross_entropy, (X, X, X)), "batch .*tuple of 3"),
        (lambda: trace(torch.relu, cross_entropy, (X, X)), r"model .*torch\.nn\.Module"),
        (lambda: FormatSpace("e4m3", ["bf16"]), "low"),
        (lambda: FormatSpace(["e4m3"], [3]), "format.*got 3"),
        (lambda: ErrorMatrix(SMALL, "ab", ERRORS), "tasks"),
        (lambda: ErrorMatrix("e4m3 x bf16", ["a"], ERRORS), "names"),
        (lambda: training_memory([1, 2, 3, 4], 8, 16), "counts"),
        (lambda: pareto.count_tensors(torch.relu, X), "count_tensors"),
        (lambda: complete(RANK_ONE, MASK * 1), "mask"),
    ],
    TypeError,
)  # fmt: skip
