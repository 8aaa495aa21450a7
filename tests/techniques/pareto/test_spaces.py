"""Spaces, error matrices and files; configurations as they train, and the memory of models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels import FloatFormat
from lpkernels.techniques.assignment import trace
from lpkernels.techniques.pareto import (
    ErrorMatrix,
    FormatSpace,
    TrainingRecipe,
    count_tensors,
    training_memory,
)
from tests.support.autograd import Computes
from tests.techniques.pareto.matrices import low_rank, some_of

AXES = {"low": ["e4m3", "e5m2"], "high": ["fp16", "bf16", "fp32"]}


def test_peppp_has_the_99_of_the_paper():
    space = FormatSpace.peppp()
    assert len(space) == len(list(space)) == 99
    assert space.names[0] == "e3m1_sat e6m7_sat"
    assert space.names[98] == "e5m3_sat e8m11_sat"
    widths = [low.bits for low in space.low]
    assert {bits: widths.count(bits) for bits in widths} == {5: 1, 6: 2, 7: 3, 8: 3, 9: 2}
    assert [high.bits for high in space.high] == [14, 16, 18, 15, 17, 19, 16, 18, 20]
    assert {fmt.overflow for pair in FormatSpace.peppp() for fmt in pair} == {"saturate"}


def test_a_space_has_the_low_format_outermost():
    space = FormatSpace(**AXES)
    low, high = space[4]
    assert (str(low), str(high)) == ("e5m2", "e8m7")
    assert space[-1] == (FloatFormat(5, 2), FloatFormat(8, 23))
    assert space[:2] == (space[0], space[1])
    assert space.low_bits.tolist() == [8] * 6
    assert space.high_bits.tolist() == [16, 16, 32] * 2


def test_a_space_is_a_sequence_with_names():
    space = FormatSpace(**AXES)
    assert [space.index(configuration) for configuration in space] == list(range(6))
    assert str(space) == "e4m3 e5m2 x e5m10 e8m7 e8m23"
    assert space.names[4] == "e5m2 e8m7"
    assert space == FormatSpace(["e4m3", "e5m2"], ["e5m10", "e8m7", "e8m23"])
    for missing in (lambda: space.index(("e5m2", "e5m2")), lambda: space[6]):
        with pytest.raises((ValueError, IndexError)):
            missing()


SMALL = FormatSpace(["e4m3", "e5m2"], ["bf16"])
ERRORS = np.array([[[0.1, 0.2], [0.3, np.nan]], [[np.nan, np.nan], [0.5, 0.7]]])
MATRIX = ErrorMatrix(SMALL, ["a", "b"], ERRORS)


def test_means_are_over_the_seeds_that_are_there():
    want = [[0.15, 0.3], [np.nan, 0.6]]
    assert pytest.approx(np.array(want), nan_ok=True) == MATRIX.mean
    single = ErrorMatrix(SMALL, ["a", "b"], ERRORS[..., 0])
    assert single.errors.shape == (2, 2, 1)
    assert np.array_equal(single.mean, ERRORS[..., 0], equal_nan=True)


GRID = FormatSpace(["e3m1", "e4m2", "e4m3", "e5m2"], ["e6m7", "e6m9", "e6m11"])
TASKS = tuple(f"set {i}" for i in range(9))
WHOLE = low_rank(9, 12, 2, noise=0.01)
DRAWN = np.where(some_of((9, 12), 0.8), WHOLE, np.nan)


def test_a_file_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = ErrorMatrix(GRID.names, TASKS, DRAWN).save(tmp_path / "known.csv")
    assert ErrorMatrix.load(path).save(tmp_path / "again.csv").read_text() == path.read_text()
    seeds = ErrorMatrix(GRID, TASKS, np.stack([DRAWN, WHOLE], axis=2))
    matrix = ErrorMatrix.load(seeds.save(tmp_path / "seeds.csv"))
    assert np.array_equal(matrix.errors, seeds.errors, equal_nan=True)


HEAD = "task,configuration,error\n"
WRONG_FILES = [
    ("task,b\n1,2\n", "line 2: expected a CSV of task,configuration,error: 'configuration'"),
    (b"\xff\xfe", "expected a CSV of task,configuration,error: .*decode"),
    (HEAD, "must be distinct and not empty"),
    (HEAD + "a,x,0.5\na\n", "names must be a list of names, got .*None"),
    (HEAD + "a,x,0.5\na,y,half\n", "line 3: .*'half'"),
    (HEAD + "a,x,inf\n", "errors must be finite, or NaN where missing; got inf"),
]


@pytest.mark.parametrize("content, message", WRONG_FILES)
def test_wrong_files_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        ErrorMatrix.load(path)
    assert str(error.value).startswith(str(path))


def test_lines_come_in_any_order_may_be_missing_and_may_have_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_text(
        "task,configuration,memory,error\n"
        "b,e4m2 e6m9,,0.25\r\nb,e4m2 e6m7,,0.5\r\na,e4m2 e6m7,,\r\nb,e4m2 e6m7,,0.75\r\n"
    )
    space = FormatSpace(["e4m2"], ["e6m7", "e6m9"])
    matrix = ErrorMatrix.load(path).for_space("a.csv", space)
    assert (matrix.names, matrix.tasks) == (space.names, ("b", "a"))
    nan = np.nan
    want = [[[0.5, 0.75], [0.25, nan]], [[nan, nan], [nan, nan]]]
    assert np.array_equal(matrix.errors, want, equal_nan=True)


@pytest.mark.parametrize(
    "high, message",
    [
        pytest.param(["e6m7", "e6m9", "e6m11"], "it has no 'e4m2 e6m11'", id="more"),
        pytest.param(["e6m9"], "it has 'e4m2 e6m7'; its columns must be called", id="fewer"),
    ],
)
def test_columns_of_other_configurations_are_refused(high: list[str], message: str) -> None:
    matrix = ErrorMatrix(FormatSpace(["e4m2"], ["e6m7", "e6m9"]), ["a"], [[0.5, 0.25]])
    with pytest.raises(ValueError, match=message):
        matrix.for_space("a.csv", FormatSpace(["e4m2"], high))


BATCH = 4


def residual() -> nn.Module:
    """A convolution, a norm, a ReLU in place, a sum, a linear layer; the ReLU is used twice."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.relu(m.norm(m.conv(x)))
        return m.linear(m.relu(y + x).flatten(1))

    parts = {"conv": nn.Conv2d(2, 2, 3, padding=1), "norm": nn.BatchNorm2d(2)}
    return Computes(forward, **parts, relu=nn.ReLU(inplace=True), linear=nn.Linear(32, 5))


MAP = BATCH * 2 * 4 * 4
X = torch.zeros(BATCH, 2, 4, 4)


def test_tensors_are_counted_once():
    counts = count_tensors(residual(), X)
    # It counts the convolution, the norm (the ReLU writes into it) and the sum; the flattened sum
    # is a view.
    assert counts == {
        "params": 2 * 2 * 9 + 2 + 4 + 165,
        "activations": 3 * MAP,
        "inputs": MAP,
        "outputs": BATCH * 5,
    }
    assert count_tensors(residual().to("meta"), X.to("meta")) == counts


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.tied = self.w

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"y": x * self.w, "same": x, "view": self.w.view(1, 3), "index": x.argmax(1) + scale}


def test_arguments_results_and_shared_parameters_count_once():
    counts = count_tensors(Pair(), torch.zeros(2, 3), kwargs={"scale": torch.tensor(1)})
    assert counts == {"params": 3, "activations": 0, "inputs": 6, "outputs": 6 + 6 + 3}


def test_the_model_is_left_as_found_after_an_error_too():
    model = residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    count_tensors(model, torch.ones_like(X))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(RuntimeError):
        count_tensors(model, torch.zeros(1, 3, 4, 4))
    assert not any(module._forward_hooks for module in model.modules())


COUNTS = {"params": 1000, "activations": 500, "inputs": 64, "outputs": 10}


def test_memory_is_that_of_the_formula_with_few_distinct_values_in_a_space():
    assert training_memory(COUNTS, 8, 16) == 6168
    assert isinstance(training_memory(COUNTS, 8, 16), float)
    # A block format costs its scales too.
    assert FormatSpace(["block32_e2m1"], ["bf16"]).low_bits.tolist() == [4.25]
    space = FormatSpace.peppp()
    memory = training_memory(COUNTS, space.low_bits, space.high_bits)
    assert memory.shape == (99,) and memory.dtype == np.float64
    assert len(np.unique(list(zip(space.low_bits, space.high_bits, strict=True)), axis=0)) == 35
    assert memory[0] == training_memory(COUNTS, 5, 14)
    assert memory[98] == training_memory(COUNTS, 9, 20) == memory.max()


RECIPE = TrainingRecipe("e4m2_sat", "e6m9_sat")


def network() -> nn.Sequential:
    hidden, middle, head = nn.Linear(7, 5), nn.Linear(5, 5), nn.Linear(5, 3)
    return nn.Sequential(hidden, nn.ReLU(), middle, nn.ReLU(), head)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(11, 7), torch.arange(11) % 3


def test_the_assignment_is_low_but_for_input_and_logits() -> None:
    ops = trace(network(), cross_entropy, batch())
    assignment = RECIPE.assignment(ops)
    last = [op.name for op in ops if op.is_gemm][-1]
    after = [op.name for op in ops][[op.name for op in ops].index(last) :]
    start = next(op.name for op in ops if not op.inputs)
    high = {f"{name}.{kind}" for name in (start, *after) for kind in ("Y", "GY")}
    assert assignment.tensors.keys() - assignment.low == high
    assert {str(assignment.format_of(key).fmt) for key in high} == {"e6m9_sat"}
    gradients = {key for key in assignment.low if key.endswith(".GP")}
    assert {str(assignment.format_of(key)) for key in gradients} == {"e8m23"}
    assert {str(assignment.format_of(key)) for key in assignment.low - gradients} == {
        "e4m2_sat:stochastic"
    }
    with pytest.raises(ValueError, match="expected a GEMM, whose result is the logits, among 0"):
        RECIPE.assignment([])
