"""Small models of several kinds for the tests of policies, and the modules in them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp


class Tagged(nn.Linear):
    """A subclass that inherits forward."""

    tag = "mine"


class Doubled(nn.Linear):
    """A layer whose own forward calls its product as a function."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Sealed(nn.Linear):
    """A class that refuses subclasses."""

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("Sealed is final")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(Block(), Block())
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


class Attention(nn.Module):
    """Attention with its products in its own forward, and softmax as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(self.softmax(q @ k.mT) @ v)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 8)
        self.norm1, self.attention = nn.LayerNorm(8), Attention()
        self.norm2, self.heads = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm3, self.up, self.down = nn.RMSNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.lm_head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = x + self.attention(self.norm1(x))
        x = x + self.heads(*[self.norm2(x)] * 3)[0]
        return self.lm_head(x + self.down(F.gelu(self.up(self.norm3(x)))))


class Network(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(before, 4), nn.Linear(4, 4)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, after)


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Network(3, 6), Network(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.discriminator(self.generator(x))


MODELS: dict[str, Any] = {
    "resnet": (ResNet, torch.randn(2, 1, 6, 6)),
    "mlp": (lambda: nn.Linear(4, 3), torch.randn(2, 4)),
    "transformer": (Transformer, torch.arange(8).reshape(2, 4) % 5),
    "gan": (Gan, torch.randn(4, 3)),
}


PRODUCTS = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)
CALLERS = (Block, ResNet, Attention, Transformer, Gan)
REDUCING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm, nn.Softmax)


def modules_of(model: nn.Module, classes: tuple[type, ...]) -> list[str]:
    """The names of the modules of these classes, in order; "" is the model itself."""
    named = model.named_modules()
    return [name for name, m in named if isinstance(m, classes) and not name.endswith("out_proj")]


def converted(model: nn.Module) -> dict[str, lp.Recipe]:
    """The recipe of every converted module, by name."""
    return {name: m.recipe for name, m in model.named_modules() if hasattr(m, "recipe")}
