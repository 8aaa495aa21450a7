"""The networks: sizes, names, weights as published or released, refusals."""

import hashlib

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.experiments.workloads import models
from lpkernels.experiments.workloads.bundled import BUNDLED, network
from lpkernels.experiments.workloads.models import FAMILIES, Task, build_model
from tests.experiments.tiny import assert_trains
from tests.experiments.workloads.digest import digest
from tests.support.refusals import rejects

IMAGES, IMAGES3 = Task("images", (1, 8, 8), 10), Task("images", (3, 32, 32), 10)
TASKS = {
    "images": IMAGES, "signals": Task("signals", (1, 40), 10), "vectors": Task("vectors", (7,), 3),
    "text": Task("text", (12,), 30),
}  # fmt: skip
LAYERS = nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.Embedding | nn.LSTM
# Every network appears with every kind of task that it is for, and with its norms.
MEMBERS = [
    (name, kind, norm.replace("-", ""))
    for name, kinds, norms in (
        ("resnet8", "images", "- batch layer none"), ("resnet14", "images", "-"),
        ("resnet18", "images", "- layer none"),
        ("cnn1", "images signals", "-"), ("cnn3", "images signals", "- batch layer none"),
        ("mlp1", "images signals vectors", "- batch layer none"), ("mlp3", "vectors", "-"),
        ("lstm2", "text", "-"), ("gpt2", "text", "- layer"),
    )
    for kind in kinds.split()
    for norm in norms.split()
]  # fmt: skip


def inputs(task: Task) -> torch.Tensor:
    if task.kind == "text":
        return torch.randint(task.outputs, (4, *task.shape))
    return torch.randn(4, *task.shape)


def test_resnets_have_the_published_weights_and_train() -> None:
    model = build_model("resnet20", IMAGES3)
    # The paper has 0.27 million (He et al. 2016, table 6); two 1x1 shortcuts with batch norm come
    # on top of it.
    shortcuts = 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert sum(p.numel() for p in model.parameters()) - shortcuts == 269722
    # torchvision's ResNet-18 has 1000 classes and a stem of 7x7.
    weights = sum(p.numel() for p in build_model("resnet18", IMAGES3).parameters())
    assert weights == 11_689_512 - 990 * 513 - 64 * 3 * (49 - 9)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    assert_trains(build_model("resnet18", IMAGES3, width=8), x, y, steps=3)


@pytest.mark.parametrize(
    "name, channels, width, names, weights",
    [
        ("resnet8", 1, 16, "e30688d16ca80621", "709b62ce1d9d691f"),
        ("resnet14", 3, 4, "25e9bc1a7385f5dd", "851694ff79743721"),
        ("cnn3", 1, 16, "fb30f8a82f76302b", "83035add1a3be544"),
        ("cnn2", 3, 4, "fed9749c91161dc2", "ebb8129b74ee2139"),
    ],
)
def test_names_and_first_weights_are_pinned(name, channels, width, names, weights):
    # A change here makes checkpoints unreadable, or changes the figures of every run.
    torch.manual_seed(0)
    norm = "none" if name == "cnn2" else ""
    task = Task("images", (channels, 8, 8), 10)
    state = build_model(name, task, width=width, norm=norm).state_dict()
    assert hashlib.sha256(" ".join(state).encode()).hexdigest()[:16] == names
    assert digest(*state.values()) == weights


@pytest.mark.parametrize("name, kind, norm", MEMBERS)
def test_models_take_their_data_and_are_converted(name: str, kind: str, norm: str) -> None:
    task = TASKS[kind]
    torch.manual_seed(0)
    model = build_model(name, task, width=8, norm=norm)
    x = inputs(task)
    plain = model(x)
    assert plain.shape == (*x.shape[: 2 if kind == "text" else 1], task.outputs)
    plain.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    layers = [n for n, m in model.named_modules() if isinstance(m, LAYERS)]
    assert (layers[0], layers[-1]) == ("stem", "head")
    if norm in ("", "layer"):
        model.zero_grad()
        coarse = lp.convert(model, lp.Recipe(input="affine2", weight="affine2"))
        output = coarse(x)
        output.square().mean().backward()
        assert not torch.equal(output, plain)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_family_is_one_function() -> None:
    try:

        @models.family("mean", "vectors", width=3, depth=2)
        def _mean(task: Task, depth: int, width: int, norm: str) -> nn.Module:
            return nn.Linear(task.shape[0], task.outputs)

        assert build_model("mean", TASKS["vectors"])(torch.zeros(2, 7)).shape == (2, 3)
        with pytest.raises(ValueError, match=r"expected one of .*mean<depth>"):
            build_model("maen", TASKS["vectors"])
        with pytest.raises(ValueError, match="family: one called 'mean' exists already"):
            models.family("mean", "vectors", width=3)(lambda *size: nn.Identity())
    finally:
        FAMILIES.pop("mean", None)


# Parameters of the published networks; the ResNet-32 here has 1x1 convolutions on its shortcuts.
PARAMETERS = {
    "resnet32-cifar": 466906, "resnet18-imagenet": 11689512, "resnet20-cifar": 272474,
}  # fmt: skip


def test_parameters_are_known_and_unknown_names_refused() -> None:
    def count(name: str) -> int:
        model = network(name, batch=1, device="meta").model
        return sum(p.numel() for p in model.parameters())

    assert {name: count(name) for name in BUNDLED} == PARAMETERS
    with pytest.raises(ValueError, match=r"expected one of resnet20-cifar, .*got 'vgg'"):
        network("vgg")


TEXT, AT_LEAST_1 = TASKS["text"], "depth and width must be at least 1"
test_names_sizes_and_norms_that_cannot_be_are_refused = rejects(
    lambda given: build_model(given[0], given[1], **given[2]),
    [
        *(((name, IMAGES, {}), f"expected one of cnn<depth>, .* the depth, got {name!r}")
          for name in ("vgg16", "cnn3_plain", "", "cnn-3", "3")),
        (("resnet9", IMAGES, {}), r"depth must be 6n \+ 2 \(8, 14, 20, ...\), got 9"),
        (("resnet18", IMAGES, {"width": -1}), AT_LEAST_1), (("lstm0", TEXT, {}), AT_LEAST_1),
        (("gpt1", TEXT, {"width": 6}), "a width that 4 heads divide, got depth=1 and width=6"),
        (("lstm1", IMAGES, {}), "got 'lstm1', which is for text; the data are images"),
        (("gpt1", TEXT, {"norm": "none"}), "norm: gpt<depth> has layer, got 'none'"),
    ],
)  # fmt: skip
