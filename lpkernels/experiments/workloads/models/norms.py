"""Normalisation of channels, by name."""

from torch import nn

_BATCH: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)


def norm_layers(norm: str, channels: int, dims: int) -> list[nn.Module]:
    """The layer that normalises `channels`, if any.

    norm: "batch"; "layer": each example by all its channels and positions (GroupNorm of one group,
        with a scale per channel); "none".
    dims: 0 for vectors (N, C), 1 for signals (N, C, L), 2 for images (N, C, H, W).
    """
    if norm == "batch":
        return [_BATCH[dims](channels)]
    return [nn.GroupNorm(1, channels)] if norm == "layer" else []
