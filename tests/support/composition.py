"""The steps of a layer as the reference makes them, with the seeds of the contract."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.support.autograd import gradients, same

#: The seed of the calls whose results are composed of steps; int64 has negative ones too.
SEED = -123456789


def signed(seed: int) -> torch.Tensor:
    """The int64 tensor with the 64 bits of a seed."""
    return torch.tensor(seed - (seed >> 63 << 64))


def how(backend: str = "auto") -> dict[str, Any]:
    """The arguments of a call that draws from SEED on a backend."""
    return {"generator": torch.tensor(SEED), "backend": backend}


def assert_composed(
    call: Callable[..., Any], inputs: Any, want: Sequence[Any], backends: Iterable[str]
) -> None:
    """On every backend the call gives this result and these gradients of the inputs."""
    for backend in backends:
        same(gradients(call(**how(backend)), inputs), want, backend, ("y", "dx", "dw", "db", "d"))


class Steps:
    """Roundings and products of one call under a recipe, on arrays of float32.

    Every rounding and every product draws from the seed of its role.
    """

    def __init__(self, recipe: lp.Recipe, seed: int = SEED) -> None:
        self.recipe, self.seed = recipe, seed

    def seed_of(self, role: str) -> int:
        return derive_seed(self.seed, Role[role.upper()])

    def rounded(self, x: np.ndarray, field: str) -> np.ndarray:
        """x as the recipe's quantizer of this name rounds it."""
        x, quantizer = np.ascontiguousarray(x), getattr(self.recipe, field)
        if quantizer is None:
            return x
        site = SITE_OUTPUT if field == "output" else SITE_QUANTIZE
        return twin.quantize(x, quantizer, seed=self.seed_of(field), site=site)

    def matmul(
        self, a: np.ndarray, b: np.ndarray, name: str, bias: Any = None, role: str = ""
    ) -> np.ndarray:
        """a @ b + bias in the recipe's accumulator `name`."""
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        acc = getattr(self.recipe, name)
        return twin.matmul(a, b, bias, acc, seed=self.seed_of(role or name))

    def bias_gradient(self, g: np.ndarray) -> np.ndarray:
        """The sums over the rows of g (rows, channels): (channels,)."""
        ones = np.ones((1, len(g)), np.float32)
        return self.matmul(ones, g, "wgrad", role="grad_bias").reshape(-1)
