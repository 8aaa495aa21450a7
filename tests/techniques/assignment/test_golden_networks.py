"""The four networks of the paper, in the forms for small images, and their assignments.

Each file of `golden` holds the result of `found` for a quarter of the usual width, 10 classes and a
batch of four images of 3 x 32 x 32; the loss is the mean cross entropy:

- "groups": for each group its elements, its number of tensors, and its first and last result. So in
  SqueezeNet the group of a squeeze convolution holds both expanding weights, and the group of the
  3x3 convolution holds the concatenation; in ResNet-18 the sum of a block with a projection is in
  the group of the projection.
- "ratios": for each ratio, the groups in the order of demotion, largest first, and the elements and
  the bits in low precision. At 1 there are a little more than half of the bits at 0, since
  gradients of weights keep 16 bits.

These numbers are exact and change only if the network, the trace or the rule does. An intended
change is written by `python -m tests.techniques.assignment.test_golden_networks`.
"""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import FAMILIES, Task, build_model
from lpkernels.techniques.assignment import Group, Op, demote, group, trace
from tests.loops import each

GOLDEN = Path(__file__).parent / "golden"
NETWORKS = ("squeezenet", "shufflenetv2", "mobilenetv2", "resnet18")


def built(name: str) -> nn.Module:
    return build_model(name, Task("images", (3, 32, 32), 10), width=FAMILIES[name].width // 4)


@functools.cache
def traced(name: str) -> tuple[Op, ...]:
    return trace(built(name), cross_entropy, (torch.zeros(4, 3, 32, 32), torch.arange(4)))


def found(name: str) -> dict[str, Any]:
    groups = group(traced(name))
    made = {str(ratio): demote(groups, ratio) for ratio in (0.0, 0.25, 0.5, 0.75, 1.0)}
    return {
        "groups": [[each.numel, len(each.tensors), *_ends(each)] for each in groups],
        "ratios": {
            ratio: {"groups": list(a.low_groups), "elements": a.low_numel, "bits": a.bits}
            for ratio, a in made.items()
        },
    }


def _ends(each: Group) -> tuple[str, str]:
    results = [t.key.removesuffix(".Y") for t in each.tensors if t.kind == "activation"]
    return results[0], results[-1]


@each("name", NETWORKS)
def test_assignments_are_the_golden_ones(name: str) -> None:
    assert found(name) == json.loads((GOLDEN / f"{name}.json").read_text())
    ops, groups = traced(name), group(traced(name))
    # A group opens with every product.
    opening = [op.name for op in ops if op.is_gemm]
    assert ["input", *opening] == [_ends(each)[0] for each in groups]
    # Every parameter and every result is counted with its gradient.
    parameters = sum(p.numel() for p in built(name).parameters())
    results = sum(op.numel for op in ops)
    assert sum(each.numel for each in groups) == 2 * (parameters + results)
    assert demote(groups, 0.0).bits == 32 * (parameters + results)
    assert demote(groups, 1.0).bits == 8 * parameters + 16 * (parameters + results)


def _write() -> None:
    for name in NETWORKS:
        values = found(name)
        lines = [f'"{key}": {json.dumps(rows)}' for key, rows in values["ratios"].items()]
        text = ",\n".join(json.dumps(row) for row in values["groups"])
        ratios = ",\n".join(lines)
        (GOLDEN / f"{name}.json").write_text(
            f'{{"groups": [\n{text}],\n"ratios": {{\n{ratios}}}}}\n'
        )


if __name__ == "__main__":
    _write()
