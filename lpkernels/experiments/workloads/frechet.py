"""The Fréchet distance of two sets of vectors, from sums that can be added up by batches."""

from collections.abc import Mapping

import torch
from torch import Tensor


def moment_sums(name: str, x: Tensor) -> dict[str, Tensor]:
    """The sums that `frechet_distance` needs of the vectors x (N, F): in float64 <name>_sum (F,) of
    the vectors and <name>_outer (F, F) of their products."""
    x = x.double()
    return {f"{name}_sum": x.sum(dim=0), f"{name}_outer": x.T @ x}


def frechet_distance(sums: Mapping[str, Tensor], one: str, two: str, count: int) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of the means and covariances of two sets.

    It is the squared distance W2 between normal distributions of these moments, 0 where they are
    equal, never negative.

    Args:
        sums: the results of `moment_sums` under the names `one` and `two`, added over all vectors.
        count: vectors in each set; covariances divide by it.
    Reference: Dowson and Landau 1982, J. Multivariate Analysis 12, equation 4; Heusel et al. 2017,
        arXiv 1706.08500, equation 6, of other features.
    """
    (mean1, c1), (mean2, c2) = (_moments(sums, name, count) for name in (one, two))
    root = _root(c1)
    # (C1 C2)^(1/2) has the eigenvalues of this symmetric matrix's root.
    cross = torch.linalg.eigvalsh(root @ c2 @ root).clamp_min(0).sqrt().sum()
    distance = (mean1 - mean2).square().sum() + c1.trace() + c2.trace() - 2 * cross
    return max(0.0, float(distance))


def _moments(sums: Mapping[str, Tensor], name: str, count: int) -> tuple[Tensor, Tensor]:
    mean = sums[f"{name}_sum"].double() / count
    return mean, sums[f"{name}_outer"].double() / count - torch.outer(mean, mean)


def _root(matrix: Tensor) -> Tensor:
    """The symmetric square root; eigenvalues that rounding made negative are 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).sqrt() @ vectors.T
