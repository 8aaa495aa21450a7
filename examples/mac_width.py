"""How narrow may my MAC be? Test accuracy against the mantissa bits of the accumulator.

Every product of the network, forward and backward, is summed by the same MAC: FP8 operands, and an
accumulator of 6 exponent bits that starts again every --chunk products or not at all. The plan
says before training how many bits each product needs.

    python examples/mac_width.py --epochs 4 --out mac.png
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import lpkernels as lp
from lpkernels.report.figures import finish, panels, save_figure
from lpkernels.techniques.accumulation import plan

SPLIT = 1408


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def main() -> dict[str, dict[int, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("mac.png"))
    options = parser.parse_args()
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(data.target)

    def loss_of(outputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y[:64])

    print(plan(network(), x[:64], loss=loss_of, operand="e5m2", exp_bits=6))

    def accuracy(sums: str) -> float:
        model = network()
        fp8 = {"input": "e5m2", "weight": "e5m2", "grad_output": "e5m2"}
        lp.convert(model, lp.Recipe(**fp8, fprop=sums, dgrad=sums, wgrad=sums))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(options.epochs):
            for index in torch.randperm(SPLIT).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
        with torch.no_grad():
            return (model.eval()(x[SPLIT:]).argmax(1) == y[SPLIT:]).float().mean().item()

    (axes,) = panels(1, (6, 4))
    results: dict[str, dict[int, float]] = {}
    for name, ending in ("one sum", ""), (f"chunks of {options.chunk}", f"_chunk{options.chunk}"):
        results[name] = {bits: accuracy(f"e6m{bits}{ending}") for bits in options.bits}
        axes.plot(options.bits, [100 * a for a in results[name].values()], marker="o", label=name)
        print(name, {bits: f"{a:.1%}" for bits, a in results[name].items()})
    axes.axhline(100 * accuracy("fp32"), color="gray", linestyle="--", label="float32 sums")
    finish(axes, xlabel="mantissa bits of the accumulator", ylabel="test accuracy (%)")
    save_figure(axes.figure, options.out, "FP8 operands, one MAC for all products")
    return results


if __name__ == "__main__":
    main()
