"""``python -m bench.around_convert``: what users do to a model before and after ``lp.convert``.

Each trial ties, parametrizes, adapts, averages or copies a small model and compares results with
the functions of ``lpkernels.functional`` to the bit. The rows are the table of
docs/results/layers.md between the two comments; tests/project/test_around_convert.py compares them.
A trial whose package is not installed keeps its row.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import lpkernels as lp
from bench.zoo.table import PAGE, split
from lpkernels.techniques.cpt import PrecisionScheduler
from tests.compare import assert_bit_equal

BEGIN, END = "<!-- around: python -m bench.around_convert --write -->", "<!-- end of around -->"
RECIPE = lp.recipe("fp8_wang2018")
DELAYED = lp.Recipe(
    input="tensor_e4m3", weight="tensor_e4m3", grad_output="tensor_e5m2",
    scaling=lp.DelayedScaling(history=4),
)  # fmt: skip
#: The bits of a schedule, and the length of a training.
BITS, STEPS = (3, 8), 20


class Net(nn.Module):
    """Two layers in a forward of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x).relu())
        return y


class LoRA(nn.Module):
    """A layer and an addend of rank 2 (Hu et al. 2022, arXiv 2106.09685)."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.embedding(tokens))
        return y


def batch() -> Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def by_functions(net: Any, x: Tensor, recipe: lp.Recipe = RECIPE) -> Tensor:
    """The result of Net by its weights, layer by layer."""
    h = lp.functional.linear(x, net.first.weight, net.first.bias, recipe=recipe)
    return lp.functional.linear(h.relu(), net.last.weight, net.last.bias, recipe=recipe)


def expect(holds: bool, fact: str) -> None:
    if not holds:
        raise AssertionError(f"expected that {fact}")


def emulated_names(model: nn.Module) -> set[str]:
    """The modules with an emulated product in the forward pass."""
    return {row.name for row in lp.nn.summary(model, batch()).rows if row.emulated}


def widths(model: nn.Module) -> set[int]:
    """The forward bits of all layers."""
    return {layer.precision.forward for layer in model.modules() if isinstance(layer, lp.nn.Linear)}


def tied() -> None:
    before, tokens = Tied(), torch.tensor([[1, 2, 3]])
    after = copy.deepcopy(before)
    before.head.weight = before.embedding.weight
    lp.convert(before, RECIPE)
    lp.convert(after, RECIPE).head.weight = after.embedding.weight
    results = [model(tokens) for model in (before, after)]
    assert_bit_equal(*results)
    for result in results:
        result.square().sum().backward()
    assert_bit_equal(before.head.weight.grad, after.head.weight.grad)


def parametrized(norm: Callable[..., Any], before: bool, multiplies: bool) -> None:
    """multiplies: whether the parametrization calls products."""
    net, inner = Net(), "first.parametrizations.weight.0"
    if before:
        norm(net.first)
    lp.convert(net, RECIPE).eval()
    if not before:
        norm(net.first).eval()
        expect((inner in emulated_names(net)) == multiplies, "products follow the module around")
        lp.convert(net, RECIPE)
    expect(emulated_names(net) == {"first", "last"}, "the parametrization is torch's own")
    for model in (net, copy.deepcopy(net)):
        assert_bit_equal(model(batch()), by_functions(net, batch()))
    net.train()(batch()).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    expect(all(g is not None for g in gradients), "every parameter has a gradient")


def pickled() -> None:
    net = Net()
    weight_norm(net.first)
    pickle.dumps(lp.convert(net, RECIPE))


def adapted(before: bool) -> None:
    net, stack = Net(), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    if not before:
        lp.convert(net, RECIPE)
        lp.convert(stack, RECIPE)
    net.first, stack[0] = LoRA(net.first), LoRA(stack[0])
    if not before:
        expect(emulated_names(stack) == {"0.base"}, "new layers are torch's own")
        expect(emulated_names(net) >= {"first.down", "first.up"}, "they follow the module around")
    lp.convert(net, RECIPE)
    lp.convert(stack, RECIPE)
    expect(emulated_names(stack) == {"0.base", "0.down", "0.up"}, "all layers are emulated")
    linear, layer = partial(lp.functional.linear, recipe=RECIPE), net.first
    addend = linear(linear(batch(), layer.down.weight), layer.up.weight)
    h = linear(batch(), layer.base.weight, layer.base.bias) + addend
    assert_bit_equal(net(batch()), linear(h.relu(), net.last.weight, net.last.bias))


def adapted_by_peft(before: bool) -> None:
    import peft

    net = Net() if before else lp.convert(Net(), RECIPE)
    config = peft.LoraConfig(r=2, target_modules=["first"], init_lora_weights=False)
    model = peft.get_peft_model(net, config)
    if not before:
        isolated = model.base_model.model.first.lora_A["default"]
        expect(type(isolated) is nn.Linear, "new layers are torch's")
    lp.convert(model, RECIPE)
    expect(lp.nn.summary(model, batch()).share == 1, "all products are emulated")
    layer = model.base_model.model.first
    addend = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    weight = layer.base_layer.weight + addend * layer.scaling["default"]
    merged = model.merge_and_unload()
    assert_bit_equal(merged.first.weight, weight)
    expect(isinstance(merged.first, lp.nn.Linear), "the merged layer is emulated")
    assert_bit_equal(merged(batch()), by_functions(merged, batch()))


def averaged(before: bool) -> None:
    net = Net() if before else lp.convert(Net(), RECIPE)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    if before:
        lp.convert(net, RECIPE)
        expect(not isinstance(average.module.first, lp.nn.Linear), "the average is torch's own")
        lp.convert(average, {"module.*": RECIPE})
    average.update_parameters(net)
    means = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    average.update_parameters(net)
    for mean, own, p in zip(means, average.parameters(), net.parameters(), strict=True):
        assert_bit_equal(own, torch.lerp(mean, p, 0.5))
    assert_bit_equal(average(batch()), by_functions(average.module, batch()))


def averaged_scales(use_buffers: bool) -> None:
    net = lp.convert(Net(), DELAYED)
    average = AveragedModel(net, use_buffers=use_buffers)
    for step in range(3):
        net(batch() * 2**step).sum().backward()
        lp.nn.update_scales(net)
        average.update_parameters(net)
    scale, mean = (model.first.scaling.input_scale.item() for model in (net, average.module))
    # A larger scale than the last input's saturates its largest value.
    expect(mean > scale if use_buffers else mean == scale, "buffers are averaged if asked for")


def averaged_statistics() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    lp.convert(net, RECIPE)
    average = AveragedModel(net)
    update_bn([batch()], average)
    h = lp.functional.linear(batch(), net[0].weight, net[0].bias, recipe=RECIPE)
    assert_bit_equal(average.module[1].running_mean, h.mean(0))


def scheduled(*others: Any) -> tuple[Net, PrecisionScheduler]:
    net = lp.convert(Net(), lp.recipe("cpt_fu2021"))
    return net, PrecisionScheduler([net, *others], STEPS, bits=BITS, cycles=1)


def finish(scheduler: PrecisionScheduler) -> None:
    for _ in range(STEPS):
        scheduler.step()


def copied_after_a_scheduler() -> None:
    net, scheduler = scheduled()
    twin = copy.deepcopy(net)
    finish(scheduler)
    expect((widths(net), widths(twin)) == ({8}, {3}), "the copy keeps the widths")
    lp.set_precision(twin, 5, 8)
    expect((widths(net), widths(twin)) == ({8}, {5}), "the model keeps its widths")
    assert_bit_equal(twin(batch()), by_functions(twin, batch(), twin.first.recipe))


def copied_with_a_scheduler() -> None:
    net, scheduler = scheduled()
    twin, of_twin = copy.deepcopy((net, scheduler))
    finish(of_twin)
    expect((widths(net), widths(twin)) == ({3}, {8}), "the copy has a schedule of its own")
    alone = copy.deepcopy(scheduler)
    finish(alone)
    expect(widths(net) == {3}, "the copied scheduler sets no model but its own")


def averaged_after_a_scheduler() -> None:
    net, scheduler = scheduled()
    average = AveragedModel(net)
    finish(scheduler)
    average.update_parameters(net)
    expect(widths(average) == {3}, "the average keeps the widths")
    both = PrecisionScheduler([net, average], STEPS, bits=BITS, cycles=1)
    finish(both)
    expect(widths(net) == widths(average) == {8}, "a schedule of both sets both")


def scheduled_before_convert() -> None:
    net = Net()
    average = AveragedModel(net)
    lp.convert(net, lp.recipe("cpt_fu2021"))
    PrecisionScheduler([net, average], STEPS, bits=BITS, cycles=1)


@dataclass(frozen=True)
class Trial:
    """A row. holds: what `run` has compared, empty where it raises an error, which the row quotes;
    package: the one that it needs beside torch."""

    what: str
    run: Callable[[], None]
    holds: str = ""
    package: str = "torch"

    @property
    def runs_here(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def row(self) -> str:
        """The line of the table.

        Raises: AssertionError: the trial has another result than its sentence says.
        """
        torch.manual_seed(0)
        try:
            self.run()
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            sentence = str(error).split(". ")[0]
            return f"| {self.what} | refused | {type(error).__name__}: {sentence} |"
        return f"| {self.what} | works | {self.holds} |"


def _parametrization(norm: Callable[..., Any], before: bool, multiplies: bool) -> Trial:
    holds = "The layer rounds the weight that the parametrization gives."
    if multiplies and before:
        holds += " Products inside the parametrization stay torch's own."
    elif multiplies:
        holds += (
            " Products inside the parametrization follow the recipe of the module whose forward "
            "runs, until `lp.convert` is called again; then they stay torch's own."
        )
    what = f"`{norm.__name__}` {'before' if before else 'after'} `convert`"
    return Trial(what, partial(parametrized, norm, before, multiplies), holds)


_NEW_LAYERS = (
    "The layer inside keeps its recipe. The new layers stay torch's own in a `Sequential`, and in "
    "a forward of your own follow the recipe of the module around, until `lp.convert` is called "
    "again."
)
TRIALS = (
    Trial("weights tied after `convert`", tied,
          "Results and gradients have the bits of a model that was tied before."),
    *(_parametrization(norm, before, multiplies)
      for norm, multiplies in ((weight_norm, False), (spectral_norm, True), (orthogonal, True))
      for before in (True, False)),
    Trial("`pickle` of a parametrized model", pickled),
    Trial("LoRA, written by hand, before `convert`", partial(adapted, True),
          "All three products are emulated; the sum of both branches is float32's."),
    Trial("LoRA, written by hand, after `convert`", partial(adapted, False), _NEW_LAYERS),
    Trial("LoRA of peft 0.21, before `convert`", partial(adapted_by_peft, True),
          "As by hand; `merge_and_unload` gives an emulated layer, its weight merged in float32.",
          "peft"),
    Trial("LoRA of peft 0.21, after `convert`", partial(adapted_by_peft, False),
          "As by hand, and `merge_and_unload` as above.", "peft"),
    Trial("`AveragedModel` before `convert`", partial(averaged, True),
          "The average stays torch's own; `lp.convert` takes it too, with names that begin with "
          "`module.`"),
    Trial("`AveragedModel` after `convert`", partial(averaged, False),
          "The average has the recipes, and averages the weights as they are, unrounded."),
    Trial("`AveragedModel` under delayed scaling", partial(averaged_scales, False),
          "It has the scales of the model at the last update."),
    Trial("`AveragedModel(use_buffers=True)` under delayed scaling", partial(averaged_scales, True),
          "Histories and scales are averaged too, so that values may saturate: leave "
          "`use_buffers` False."),
    Trial("`update_bn` of an average", averaged_statistics,
          "The statistics are those of the emulated layers' results."),
    Trial("`deepcopy` of a model that has a `PrecisionScheduler`", copied_after_a_scheduler,
          "The copy has no schedule: it keeps the widths of that moment, and neither model sees "
          "changes of the other."),
    Trial("`deepcopy` of `(model, scheduler)`", copied_with_a_scheduler,
          "The copy has a schedule of its own. `deepcopy(scheduler)` alone copies the model too, "
          "and sets that copy."),
    Trial("`AveragedModel` of a model that has a `PrecisionScheduler`", averaged_after_a_scheduler,
          "The average has no schedule: made at step 0, it stays at the lowest bits. Give the "
          "scheduler both, `[model, average]`, or set `lp.set_precision(average, 8, 8)`."),
    Trial("`PrecisionScheduler([model, average])`, the average made before `convert`",
          scheduled_before_convert),
)  # fmt: skip


def written(page: str) -> str:
    """The page with the rows of today, except those of packages that are not installed."""
    before, lines, after = split(page, BEGIN, END)
    rows = {line.split(" | ")[0]: line for line in lines}
    texts = [t.row() if t.runs_here else rows.get(f"| {t.what}", "") for t in TRIALS]
    return before + "\n".join(filter(None, texts)) + after


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.around_convert")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {PAGE.name}")
    if parser.parse_args(arguments).write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(*(trial.row() for trial in TRIALS if trial.runs_here), sep="\n")


if __name__ == "__main__":
    main()
