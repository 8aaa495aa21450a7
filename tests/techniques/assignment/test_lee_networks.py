"""The networks of Lee et al. have the parameters and first weights of the released code."""

import math

import pytest
import torch
from torch import nn

from tests.experiments.tiny import assert_trains
from tests.techniques.assignment.lee_networks import NETWORKS

# By width in percent, parameters with 10 and with 100 classes, counted in the released code.
PARAMETERS = {
    "resnet18": {100: (11_173_962, 11_220_132), 50: (2_797_610, 2_820_740),
                     25: (701_466, 713_076), 10: (112_778, 117_548)},
    "squeezenet": {100: (734_986, 781_156), 50: (232_202, 278_372),
                       25: (84_778, 130_948), 10: (36_482, 82_652)},
    "mobilenetv2": {100: (2_296_922, 2_412_212), 50: (715_834, 831_124),
                        25: (254_050, 369_340), 10: (89_226, 204_516)},
    "shufflenetv2": {100: (1_263_854, 1_356_104), 50: (433_034, 525_284),
                         25: (180_222, 272_472), 10: (74_302, 166_552)},
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("width", (100, 50, 25, 10))
def test_parameters_are_those_of_the_released_networks(name: str, width: int) -> None:
    for classes, count in zip((10, 100), PARAMETERS[name][width], strict=True):
        with torch.device("meta"):
            model = NETWORKS[name](width, classes)
        assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_narrow_network_trains_and_has_relus_and_norms(name: str) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name](10, 10)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    assert_trains(model, x, y, steps=4)
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert (layers[0], layers[-1]) == ("stem", "head")
    assert all(type(m) is not nn.ReLU6 for m in model.modules())
    biased = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.bias is not None]
    # All convolutions of SqueezeNet have biases: eight fire modules, the stem and the head.
    assert len(biased) == (8 * 3 + 2 if name == "squeezenet" else 0)


def test_first_weights_have_the_released_deviations() -> None:
    torch.manual_seed(0)
    resnet, squeeze, mobile = (
        NETWORKS[name](50, 10) for name in ("resnet18", "squeezenet", "mobilenetv2")
    )
    deviations = {
        resnet.body[-1].conv2.weight: math.sqrt(2 / (256 * 9)),
        squeeze.head.weight: math.sqrt(2 / 512),
        # A depthwise convolution has as many outputs as channels, and 9 taps each.
        mobile.body[-4].layers[3].weight: math.sqrt(2 / (9 * 6 * 80)),
        mobile.head.weight: 0.01,
    }  # fmt: skip
    for weight, deviation in deviations.items():
        assert weight.std().item() == pytest.approx(deviation, rel=0.1)
    assert not mobile.head.bias.any()
