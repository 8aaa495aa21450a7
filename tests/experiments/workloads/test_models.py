"""The networks: their sizes, their names, and what is refused."""

import pytest
import torch

from lpkernels.experiments.workloads.models import PlainCNN, ResNet, build_model


def test_resnet20_has_the_published_size() -> None:
    model = ResNet(3, 10, depth=20, width=16)
    weights = sum(p.numel() for p in model.parameters())
    # 0.27 million (He et al. 2016, table 6), and two 1x1 shortcuts with batch norm on top of it
    shortcuts = 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert weights - shortcuts == 269722
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet8", "resnet14", "cnn1", "cnn3", "cnn3_plain"])
def test_models_take_the_digits(name: str) -> None:
    model = build_model(name, 1, 10, width=4)
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)
    layers = [
        n for n, m in model.named_modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)
    ]
    assert layers[0] == "stem"
    assert layers[-1] == "head"


def test_plain_cnn_without_norm_has_biases() -> None:
    assert build_model("cnn2_plain", 1, 10).stem.bias is not None
    assert build_model("cnn2", 1, 10).stem.bias is None


@pytest.mark.parametrize("name", ["resnet", "vgg16", "resnet20_plain", "cnn3_bn", ""])
def test_unknown_model_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected resnet<depth>, cnn<depth>"):
        build_model(name, 1, 10)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 2 \(8, 14, 20, ...\), got 9"):
        build_model("resnet9", 1, 10)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        build_model("resnet8", 1, 10, width=0)
    with pytest.raises(ValueError, match="at least 1, got depth=0 and width=16"):
        PlainCNN(1, 10, depth=0)
