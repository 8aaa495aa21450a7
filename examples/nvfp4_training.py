"""Does my model train in NVFP4? The curves of its loss say so, beside those of float32 and MXFP8.

Put your network and your data in the place of `network` and `batches`.

    python examples/nvfp4_training.py --epochs 10 --out nvfp4.png
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.report.figures import finish, panels, save_figure

# NVFP4 as NVIDIA pretrains in it, the format alone, and two formats that it must come close to.
RECIPES = ("fp32", "mxfp8", "nvfp4", "nvfp4_pretraining")
BATCH = 64


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128),
        nn.GELU(), nn.Linear(128, 10),
    )  # fmt: skip


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 8 - 1, torch.tensor(data.target)


def train(recipe: str, epochs: int) -> tuple[list[float], float]:
    """The loss of each step, and the accuracy on the images that it did not see."""
    (x, y), split = digits(), 1408
    model = lp.convert(network(), recipe)  # the policy: NVFP4's keeps the last layer in float32
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    order = torch.Generator().manual_seed(0)  # one order for all recipes, whatever they draw
    losses = []
    for _ in range(epochs):
        for index in torch.randperm(split, generator=order).split(BATCH):
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        return losses, (model(x[split:]).argmax(1) == y[split:]).float().mean().item()


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("nvfp4.png"))
    options = parser.parse_args()

    print(lp.nn.summary(lp.convert(network(), "nvfp4_pretraining"), torch.randn(BATCH, 64)))
    (axes,) = panels(1, (6, 4))
    accuracies = {}
    for recipe in RECIPES:
        losses, accuracies[recipe] = train(recipe, options.epochs)
        smooth = torch.tensor(losses).unfold(0, 11, 1).mean(-1)
        axes.plot(range(5, 5 + len(smooth)), smooth, label=recipe)
        print(f"{recipe:18} test accuracy {accuracies[recipe]:.1%}, last loss {smooth[-1]:.3f}")
    finish(axes, xlabel="step", ylabel="training loss, mean of 11 steps", yscale="log")
    save_figure(axes.figure, options.out, "Four arithmetics, one network")
    return accuracies


if __name__ == "__main__":
    main()
