# %% [markdown]
# # NVFP4 piece by piece
#
# NVIDIA's recipe for pretraining in NVFP4 has four pieces: codes of four bits with a scale for
# each block of 16, stochastic rounding of the gradients, a Hadamard transform before wgrad, and
# scales of squares for weights. What does each do to the gradient of a weight? The script runs in
# seconds: `python docs/tutorials/nvfp4_piece_by_piece.py`.

# %%
from dataclasses import replace

import torch

import lpkernels as lp

torch.manual_seed(0)
x = torch.randn(256, 64) * torch.logspace(-1, 1, 64)  # some inputs are larger than others
w = torch.randn(32, 64) / 8
g = torch.randn(256, 32) * 1e-3

# %% [markdown]
# The format: `e2m1` codes, a scale in `e4m3fn` for each 16 values, and one float32 scale for the
# tensor. `scaled` gives codes and scales, `quantize` the values that they stand for.

# %%
packed = lp.scaled(w, "nvfp4")
print(tuple(packed.values.shape), tuple(packed.scale.shape), float(packed.tensor_scale))
print(f"relative error: {float((lp.quantize(w, 'nvfp4') - w).norm() / w.norm()):.3f}")

# %% [markdown]
# One layer under a recipe, and the error of its weight's gradient against the exact product. The
# pieces come one after the other.


# %%
def error(recipe: lp.Recipe) -> float:
    layer = lp.nn.Linear(64, 32, bias=False, recipe=recipe)
    with torch.no_grad():
        layer.weight.copy_(w)
    layer(x).backward(g)
    exact = g.double().T @ x.double()
    return float((layer.weight.grad.double() - exact).norm() / exact.norm())


codes = lp.recipe("nvfp4")
drawn = f"{codes.grad_output}:stochastic"
turned = {"wgrad_input": f"{codes.input}:rht16", "wgrad_grad_output": f"{drawn}:rht16"}
steps = {
    "mxfp8, for comparison": lp.recipe("mxfp8"),
    "codes and scales": codes,
    "+ stochastic gradients": replace(codes, grad_output=drawn),
    "+ transform of wgrad": replace(codes, grad_output=drawn, **turned),
    "the recipe": lp.recipe("nvfp4_pretraining"),
}
for name, recipe in steps.items():
    print(f"{name:24}{error(recipe):.4f}")

# %% [markdown]
# Stochastic rounding makes single errors larger and their mean zero: over many steps the gradient
# is right on average.

# %%
nearest = lp.quantize(g, "nvfp4")
drawn = torch.stack([lp.quantize(g, "nvfp4:stochastic") for _ in range(200)])
print(f"error of one draw  {float((drawn[0] - g).norm() / g.norm()):.3f}")
print(f"error of the mean  {float((drawn.mean(0) - g).norm() / g.norm()):.3f}")
print(f"error to nearest   {float((nearest - g).norm() / g.norm()):.3f}")

# %% [markdown]
# **A question.** How many draws does it take until their mean is nearer than rounding to nearest?
# Change 200, and think of 1 / sqrt(n).
