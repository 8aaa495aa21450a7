# %% [markdown]
# # Choosing an accumulator
#
# How narrow may the sums of a network be? A plan predicts a width for each product, and training
# at that width and below it shows whether the prediction holds. The script runs in about a minute
# on 2 cores: `python docs/tutorials/choosing_an_accumulator.py`.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import lpkernels as lp
from lpkernels.techniques.accumulation import measure, plan

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
images = images.repeat_interleave(2, 2).repeat_interleave(2, 3)  # 16 x 16: longer sums
labels = torch.tensor(digits.target)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


# %% [markdown]
# `plan` traces one batch and lists the products of every layer: how many terms their sums have,
# and how many mantissa bits these need. wgrad sums over the batch and all positions, so it needs
# most. Exponents are given, here 6 bits.

# %%
batch = images[:64]
made = plan(
    network(),
    batch,
    loss=lambda y: nn.functional.cross_entropy(y, labels[:64]),
    operand="e5m2",
    exp_bits=6,
)
print(made)

# %% [markdown]
# Training under the plan, and with fewer bits in every sum. `narrowed(n)` gives recipes with n
# mantissa bits fewer.


# %%
def fit(recipes: object, epochs: int = 3) -> float:
    model = network()
    if recipes is not None:
        lp.convert(model, recipes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(1400, generator=order).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()


print(f"float32: {fit(None):.1%}")
for fewer in (0, 3, 6):
    print(f"{fewer} bits fewer than planned: {fit(made.narrowed(fewer)):.1%}")

# %% [markdown]
# A chunk makes long sums affordable: 64 products are summed by themselves, and an outer sum adds
# the chunks. `measure` compares an accumulator with exact sums on matrices of yours.

# %%
torch.manual_seed(0)
a, b = lp.quantize(torch.randn(64, 16384), "e5m2"), lp.quantize(torch.randn(16384, 64), "e5m2")
for name in ("e6m9", "e6m5", "e6m5_chunk64"):
    print(measure(a, b, lp.accumulator(name)))

# %% [markdown]
# **A question.** How narrow may the chunked accumulator be on this network? Pass `chunk=64` to
# `plan` and change the three numbers of bits. Does training fail at the same distance from the
# plan?
