"""Train a small CNN on scikit-learn's digits with FP8 operands and a 16-bit accumulator.

It is an ordinary torch training loop; `lp.convert` is the only line that makes it low precision.

    python examples/train_digits_fp8.py --epochs 5 --recipe fp8_wang2018
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import lpkernels as lp


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=1797, help="fewer for a quick try")
    parser.add_argument(
        "--recipe", default="fp8_wang2018", help=f"one of {', '.join(lp.recipes())}"
    )
    options = parser.parse_args()

    digits = load_digits()
    x = torch.tensor(digits.images[: options.images], dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target[: options.images])
    split = len(y) * 4 // 5

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    # Operands are e5m2 and sums e6m9 in chunks of 64, forward and backward, in all but the last
    # layer.
    lp.convert(model, lp.recipe(options.recipe), exclude="5")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # e5m2 has no values below 2^-16: gradients are scaled up before they are rounded to it.
    loss_scale = 1024.0
    for epoch in range(options.epochs):
        for index in torch.randperm(split).split(64):
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            (loss * loss_scale).backward()
            for parameter in model.parameters():
                parameter.grad /= loss_scale
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x[split:]).argmax(dim=1) == y[split:]).float().mean().item()
        print(f"epoch {epoch + 1}  loss {loss.item():.4f}  test accuracy {accuracy:.2%}")
    return accuracy


if __name__ == "__main__":
    main()
