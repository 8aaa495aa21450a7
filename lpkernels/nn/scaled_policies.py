"""Named policies of scaled formats, and the blocks of a model that a policy leaves to torch."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch.nn import Module

from lpkernels.arithmetic import TORCH
from lpkernels.formats import BlockFormat
from lpkernels.formats.checks import checked_int
from lpkernels.nn._positions import FUNCTIONS, GATES, LAST
from lpkernels.nn.policies import NO_ARITHMETIC, POLICIES, REDUCING, TRANSPOSED, Policy
from lpkernels.nn.selecting import Pattern, callers, check_model, layers
from lpkernels.recipes import describe, recipe

_CONVOLUTIONS: tuple[type[Module], ...] = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    *TRANSPOSED,
)
# Characters that a glob does not take as they are.
_SPECIAL = re.compile(r"[*?[]")
# The text of each policy behind the name of its recipe. Recipes that are formats alone keep no
# layer with products apart.
_HEAD = " The last layer, a language model's head, stays torch's own too, as in the source."
_LAYERS = {
    "mxfp8": _HEAD,
    "mxfp8_ocp": "",
    "mxfp6": "",
    "mxfp4": "",
    "mxfp4_sr": "",
    "nvfp4": "",
    "nvfp4_pretraining": _HEAD
    + " The source keeps about 15% of the linear layers in bf16 besides, most of them at the end, "
    "and in a model of 12 billion parameters the first two and the last eight blocks: "
    "`policy.keep(model, first=2, last=8)` writes them out, in float32.",
    "deepseek_v3": _HEAD + " So do the gates that choose experts (lp.nn.GATES).",
    "te_block": _HEAD,
    "te_current": _HEAD,
    "te_delayed": _HEAD
    + " torch.nn.MultiheadAttention keeps no scales for its projections and stays torch's own.",
    "fp8_rowwise": "",
    "int8_training": "",
}
_APART = (
    "Our reading: embeddings, norms, softmax and the products that a forward calls as functions, "
    "attention's among them, stay torch's own, float32; so do the products between the projections "
    "of torch.nn.MultiheadAttention, whose projections are linear layers."
)
_NO_CONVOLUTIONS = (
    " Convolutions stay torch's own: no blocks run along the sums of overlapping windows."
)


def _policy(name: str) -> Policy:
    body = recipe(name)
    apart: list[Pattern] = [LAST] if _HEAD in _LAYERS[name] else []
    apart += [GATES] if "GATES" in _LAYERS[name] else []
    apart += [FUNCTIONS, torch.nn.Embedding, *REDUCING]
    # Projections have no place for scales of their own.
    lacking: list[Pattern] = [torch.nn.MultiheadAttention] if recipe(name).scaling else []
    lacking += _CONVOLUTIONS if _runs_along_k(name) else ()
    kept = {**dict.fromkeys(apart, TORCH), **dict.fromkeys(lacking, NO_ARITHMETIC)}
    return Policy({**kept, "*": body})


def _runs_along_k(name: str) -> bool:
    fmt = getattr(recipe(name).input, "fmt", None)
    return isinstance(fmt, BlockFormat) and fmt.axis == "k"


def _description(name: str) -> str:
    convolutions = _NO_CONVOLUTIONS if _runs_along_k(name) else ""
    return f"{describe(name)}\n\n{_APART}{convolutions}{_LAYERS[name]}"


for _name in _LAYERS:
    _build = partial(_policy, _name)
    _build.__doc__ = _description(_name)
    POLICIES[_name] = _build


def kept_blocks(model: Module, first: int, last: int, keep_share: float | None) -> list[str]:
    """The globs of `Policy.keep`: of each block its name, and all names below it."""
    check_model("Policy.keep", model)
    chains = [
        (name, len(module))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
    ]
    if not chains:
        raise ValueError(
            f"Policy.keep: expected a model whose blocks stand in a ModuleList or Sequential, got "
            f"{type(model).__name__}; name its layers instead: {{'head.*': 'fp32'}} | policy"
        )
    chain, count = max(chains, key=lambda each: each[1])
    first = checked_int("Policy.keep", "first", first, 0, count)
    last = checked_int("Policy.keep", "last", last, 0, count)
    if (keep_share is None) == (first + last == 0) or first + last > count:
        raise ValueError(
            f"Policy.keep: expected first and last, at most {count} blocks of {chain!r} together, "
            f"or keep_share, got first={first}, last={last}, keep_share={keep_share}"
        )
    if keep_share is not None:
        if not 0 < keep_share <= 1:
            raise ValueError(f"Policy.keep: expected keep_share in 0 to 1, got {keep_share}")
        last = max(1, round(keep_share * count))
    prefix = f"{chain}." if chain else ""
    blocks = [name for name, _ in model.get_submodule(chain).named_children()]
    ends = blocks[:first] + blocks[count - last :]
    kept = [_SPECIAL.sub(r"[\g<0>]", prefix + name) for name in ends]
    # A key must match something that can be converted.
    able = [name for layer in (*layers(model), *callers(model)) for name in layer.names]
    globs = [name + below for name in kept for below in ("", ".*")]
    return [glob for glob in globs if any(fnmatchcase(name, glob) for name in able)]
