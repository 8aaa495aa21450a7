"""Other ways to find a frontier: optimizers for two objectives, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from lpkernels.techniques.pareto import FormatSpace

#: (space, memory, measure, n, seed) -> n different configurations in the order of measuring.
Search = Callable[[FormatSpace, np.ndarray, Callable[[int], float], int, int], list[int]]

# Optuna proposes again what it has tried. So many proposals are asked for a measurement; then it is
# drawn at random.
_PROPOSALS = 20
# So many measurements are made before a Gaussian process is fitted.
_FIRST = 3


def searches() -> tuple[dict[str, Search], dict[str, str]]:
    """The optimizers that are installed, and why the others are not there."""
    wanted: dict[str, tuple[str, Search]] = {
        "tpe": ("optuna", tpe), "nsga2": ("optuna", nsga2), "qnehvi": ("botorch", qnehvi),
    }  # fmt: skip
    found, lacking = {}, {}
    for name, (package, search) in wanted.items():
        if importlib.util.find_spec(package) is None:
            lacking[name] = f"{package} is not installed"
        else:
            found[name] = search
    return found, lacking


def tpe(
    space: FormatSpace, memory: np.ndarray, measure: Callable[[int], float], n: int, seed: int
) -> list[int]:
    """Optuna's multi-objective TPE, with its defaults but for a start of 3 random trials."""
    import optuna

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_FIRST)
    return _optuna(sampler, space, memory, measure, n, seed)


def nsga2(
    space: FormatSpace, memory: np.ndarray, measure: Callable[[int], float], n: int, seed: int
) -> list[int]:
    """Optuna's NSGA-II in populations of 4: with the default of 50 all would be random here."""
    import optuna

    sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=4)
    return _optuna(sampler, space, memory, measure, n, seed)


def _optuna(
    sampler: Any,
    space: FormatSpace,
    memory: np.ndarray,
    measure: Callable[[int], float],
    n: int,
    seed: int,
) -> list[int]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    axes = {f"axis{i}": list(range(size)) for i, size in enumerate(space.shape)}
    chosen: list[int] = []
    for _ in range(_PROPOSALS * n):
        if len(chosen) == n:
            break
        trial = study.ask()
        at = tuple(trial.suggest_categorical(name, values) for name, values in axes.items())
        index = int(np.ravel_multi_index(at, space.shape))
        study.tell(trial, [float(memory[index]), float(measure(index))])
        if index not in chosen:
            chosen.append(index)
    rest = np.setdiff1d(np.arange(len(space)), chosen)
    drawn = np.random.default_rng(seed).permutation(rest)[: n - len(chosen)]
    return [*chosen, *map(int, drawn)]


def qnehvi(
    space: FormatSpace, memory: np.ndarray, measure: Callable[[int], float], n: int, seed: int
) -> list[int]:
    """BoTorch's qLogNEHVI, which chooses one at a time among all that is left, after 3 random
    measurements.

    One Gaussian process on the bits of the formats models the error, and another one the memory,
    which is an objective like any other to it.
    """
    import torch
    from botorch.acquisition.multi_objective.logei import (
        qLogNoisyExpectedHypervolumeImprovement,
    )
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import ModelListGP, SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import SumMarginalLogLikelihood

    torch.manual_seed(seed)
    rows = [[f for fmt in c[:2] for f in (fmt.exp_bits, fmt.man_bits)] for c in space]
    x = torch.tensor(rows, dtype=torch.float64)
    x = (x - x.amin(0)) / (x.amax(0) - x.amin(0)).clamp_min(1)
    sizes = torch.tensor(memory / memory.max(), dtype=torch.float64)
    chosen = [int(i) for i in np.random.default_rng(seed).permutation(len(space))[:_FIRST]]
    while len(chosen) < n:
        errors = torch.tensor([measure(i) for i in chosen], dtype=torch.float64)
        # Both objectives are to be made small; BoTorch makes them large.
        y = -torch.stack([sizes[chosen], errors], dim=1)
        models = [
            SingleTaskGP(x[chosen], y[:, i : i + 1], outcome_transform=Standardize(m=1))
            for i in range(2)
        ]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model=model,
            ref_point=[-1.1, -1.0],
            X_baseline=x[chosen],
            sampler=SobolQMCNormalSampler(torch.Size([64]), seed=seed),
        )
        left = np.setdiff1d(np.arange(len(space)), chosen)
        with torch.no_grad():
            values = acquisition(x[left].unsqueeze(1))
        chosen.append(int(left[int(values.argmax())]))
    return chosen
