"""Groups and ten steps beside what the code that Lee et al. released gives, kept as data.

golden/released.json holds for it: the elements of the groups of the paper's networks in the width
10% on two images of 3 x 8 x 8; the groups that a ratio of 0.6 demotes in ResNet-18; and ten steps
of this network, each with its loss, the loss scale after it and the keys that it promotes. Commit
6a40c950 computed them by the rules of github.com/wonyeol/mixed-prec-train, commit 5ac37b2, written
out in plain torch.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import assign, demote, group, trace
from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "released.json").read_text())
BATCH = 8


def network(name: str) -> nn.Module:
    return build_model(f"lee-{name}", Task("images", (3, 8, 8), 10), width=10)


@each("name", GOLDEN["groups"])
def test_groups_have_the_released_sizes_but_for_the_loss_and_halves(name: str) -> None:
    batch = torch.zeros(2, 3, 8, 8), torch.arange(2)
    found = [each.numel for each in group(trace(network(name), cross_entropy, batch))]
    expected = GOLDEN["groups"][name]
    assert len(found) == len(expected)
    less = {at: b - a for at, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b}
    # There the mean loss counts for each of the two examples, with its gradient.
    assert less.pop(len(found) - 1) == 2
    # And the two halves of a split tensor are tensors of their own, in thirteen units.
    assert len(less) == (13 if name == "shufflenetv2" else 0)
    assert all(more in (192, 384, 768) for more in less.values())


def test_ten_steps_go_as_the_released_code_goes() -> None:
    """Roundings differ where docs/assignments.md says so; a promotion comes one step later here."""
    torch.manual_seed(0)
    model = network("resnet18")
    # The gradient of tiny first weights overflows at the first scale, and so do results of large
    # images, which are promoted. Norms have small scales, so some results are rounded to 0.
    with torch.no_grad():
        model.stem.weight.mul_(1.5e-7)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.mul_(2**-6)
    shape = (BATCH, 3, 8, 8)
    batches = [(2e6 * torch.randn(shape), torch.randint(10, (BATCH,))) for _ in range(4)]
    made = demote(group(trace(model, cross_entropy, batches[0])), 0.6)
    assert list(made.low_groups) == GOLDEN["low"]
    assigned = assign(model, cross_entropy, made, fan_out="branches")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scaler = LossScaler(init_scale=2.0**16, growth_interval=20)
    promoted: list[list[str]] = []
    for step, (loss, scale, _) in enumerate(GOLDEN["steps"]):
        x, target = batches[step % len(batches)]
        optimizer.zero_grad()
        value = assigned(x, target)
        assert float(value.detach()) == pytest.approx(loss, abs=0.05), step
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale, step
        promoted.append(list(assigned.step()))
    assert promoted[1:] == [keys for *_, keys in GOLDEN["steps"][:-1]]
