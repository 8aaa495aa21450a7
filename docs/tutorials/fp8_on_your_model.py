# %% [markdown]
# # FP8 on your model
#
# A network is trained in float32 and in FP8, with the same seed and the same data. Then a
# diagnosis says which tensors FP8 loses, and a loss scale repairs it. The script runs in about a
# minute on 2 cores: `python docs/tutorials/fp8_on_your_model.py`.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import LossScaler, diagnose

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
train, test = slice(0, 1400), slice(1400, None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


# %% [markdown]
# The loop is an ordinary one. `scale` is a loss scale; 1 changes nothing.


# %%
def fit(model: nn.Module, epochs: int = 12, scale: float = 1.0) -> float:
    scaler = LossScaler(init_scale=scale, growth_interval=10**9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(1400, generator=order).split(100):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[train][batch]), labels[train][batch])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    with torch.no_grad():
        return (model(images[test]).argmax(1) == labels[test]).float().mean().item()


print(f"float32: {fit(network()):.1%}")

# %% [markdown]
# `lp.convert` gives every layer a recipe, in place. Here inputs and weights are rounded to e4m3,
# and the gradient that enters each layer too; e4m3 ends at 2^-9, so small gradients become zero.

# %%
recipe = lp.Recipe(input="e4m3fn_sat", weight="e4m3fn_sat", grad_output="e4m3")
model = lp.convert(network(), recipe)
print(f"e4m3 throughout: {fit(model):.1%}")

# %% [markdown]
# Which tensors lose numbers? One step under `diagnose` counts them. The diagnosis changes nothing
# in the model.

# %%
with diagnose(model) as report:
    nn.functional.cross_entropy(model(images[:100]), labels[:100]).backward()
print(report)
print(report.recommend())

# %% [markdown]
# The gradients underflow, and the report names the scales that keep them: from the smallest that
# loses at most 1% to the largest safe one.

# %%
print(f"e4m3 with a loss scale of 128: {fit(lp.convert(network(), recipe), scale=128.0):.1%}")

# %% [markdown]
# **A question.** e5m2 reaches down to 2^-16 and has one mantissa bit less. Change `grad_output`
# of the recipe to `"e5m2"`, and the scale to 1. Does the network still need a scale? Run the
# diagnosis again before you answer.
