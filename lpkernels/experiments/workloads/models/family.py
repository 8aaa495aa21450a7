"""Networks by name: families of networks, and how a family becomes known."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from lpkernels.formats.elsewhere import nearest

#: The purposes of a network.
Kind = Literal["images", "signals", "vectors", "text", "denoising"]


@dataclass(frozen=True)
class Task:
    """The task for which a network is built.

    kind: the inputs it takes: images (N, C, H, W), signals (N, C, L) or vectors (N, F) to classify,
        text (N, L) of character numbers to continue, or images to free of noise.
    shape: of one example: (C, H, W), (C, L), (F,), for text (L,).
    outputs: classes, or characters of the vocabulary; for denoising the channels.
    """

    kind: Kind
    shape: tuple[int, ...]
    outputs: int


@dataclass(frozen=True)
class Size:
    """Which member of a family: the depth of its name, its width, and its normalisation, "" for
    the one that is usual for the task."""

    depth: int
    width: int
    norm: str


Builder = Callable[[Task, Size], nn.Module]


@dataclass(frozen=True)
class Family:
    """Networks that differ in depth, width and normalisation.

    name: a member's name is this, then its depth.
    build: makes a member, its weights from torch's generator.
    kinds: the tasks it is for.
    depth: of the name without a number; 0: there is no depth, and no number.
    width: the default, where 0 is asked for.
    norms: the values that `norm` may have.
    """

    name: str
    build: Builder
    kinds: tuple[Kind, ...]
    depth: int
    width: int
    norms: tuple[str, ...]

    @property
    def form(self) -> str:
        """The form of its members' names."""
        return f"{self.name}<depth>" if self.depth else self.name


FAMILIES: dict[str, Family] = {}

# A member without normalisation may also be called by its name with this suffix.
_PLAIN = "_plain"


def family(
    name: str, *kinds: Kind, width: int, depth: int = 0, norms: tuple[str, ...] = ("none",)
) -> Callable[[Builder], Builder]:
    """Makes a family of networks known, as a decorator of the function that builds its members.

    Example, a file of its own in this folder:

        @family("mean", "images", "signals", width=8, depth=1)
        def _mean(task: Task, size: Size) -> nn.Module:
            return MeanNetwork(task.shape[0], task.outputs, depth=size.depth, width=size.width)

    after which `--model mean2` is a network of depth 2. First layers are called `stem`, last ones
    `head`.

    Args:
        name: the beginning of the members' names, which end in their depth. A network that has no
            depth may have digits at the end of its name, which then is no member of another family.
        kinds: of the tasks that it is for.
        width: the width where 0 is asked for.
        depth: of the name without a number; 0: there is no depth, and no number.
        norms: the values that `norm` may have.
    Raises: ValueError: a family of that name exists, or its name is of another form.
    """
    if not re.fullmatch("[a-z]+" if depth else r"[a-z]+(-[a-z]+)?\d*", name):
        more = "" if depth else ", with one hyphen and digits at the end if any"
        raise ValueError(f"family: expected a name of small letters{more}, got {name!r}")

    def register(build: Builder) -> Builder:
        known = FAMILIES.get(name)
        if known is not None and known.build.__qualname__ != build.__qualname__:
            raise ValueError(f"family: one called {name!r} exists already")
        FAMILIES[name] = Family(name, build, kinds, depth, width, norms)
        return build

    return register


def _forms(name: str, kind: Kind | None = None) -> str:
    """The forms of the names of models, of one `kind` or all, as the error about `name` lists
    them."""
    found = [f for f in FAMILIES.values() if kind is None or kind in f.kinds]
    return nearest(name, sorted(f.form for f in found), "docs/training.md lists all")


def parse_model(name: str) -> tuple[Family, int, str]:
    """The family, the depth and, where the name says it, the normalisation of the model `name`.

    Raises: ValueError: no model can be called that.
    """
    whole = "|".join(each.name for each in FAMILIES.values() if not each.depth)
    match = re.fullmatch(rf"({whole})()({_PLAIN})?", name) or re.fullmatch(
        rf"([a-z]+?)(\d*)({_PLAIN})?", name
    )
    found = FAMILIES.get(match[1]) if match else None
    if match is None or found is None or (match[2] and not found.depth):
        raise ValueError(
            f"model: expected one of {_forms(name)}, with a number for the depth, or "
            f"cnn<depth>_plain, got {name!r}"
        )
    if match[3] and len(found.norms) == 1:
        raise ValueError(f"model: {found.form} has no normalisation to leave out, got {name!r}")
    return found, int(match[2] or found.depth), "none" if match[3] else ""


def model_builder(
    name: str, task: Task, *, width: int = 0, norm: str = ""
) -> Callable[[], nn.Module]:
    """A function that makes the network called `name` for `task`, with weights from torch's
    generator.

    Args:
        name: "resnet8", "cnn3", "cnn3_plain" (no normalisation), "lstm1", ...; without a number it
            has the family's usual depth.
        task: the task that it is built for.
        width: channels or units of the first layer; 0: the usual.
        norm: "batch", "layer", "none", or "" for the usual.
    Raises: ValueError: a name of another form, a model for other data, or a normalisation that it
        does not have.
    """
    found, depth, plain = parse_model(name)
    if task.kind not in found.kinds:
        raise ValueError(
            f"model: {found.form} is for {' and '.join(found.kinds)}, and the data are "
            f"{task.kind}; expected one of {_forms(name, task.kind)}, got {name!r}"
        )
    if plain and norm not in ("", plain):
        raise ValueError(f"norm: {name} has none, got {norm!r}; leave one of the two out")
    norm = norm or plain
    if norm and norm not in found.norms:
        raise ValueError(f"norm: {found.form} has {' or '.join(found.norms)}, got {norm!r}")
    if width < 0:
        raise ValueError(f"width: expected at least 1, or 0 for the usual, got {width}")
    return partial(found.build, task, Size(depth, width or found.width, norm))


def build_model(name: str, task: Task, *, width: int = 0, norm: str = "") -> nn.Module:
    """The network called `name` for `task`, with weights from torch's generator.

    Args: name, task, width, norm: as of `model_builder`.
    Raises: ValueError: as `model_builder`; a depth or a width that the family cannot have.

    >>> from lpkernels.experiments.workloads.models import Task, build_model
    >>> model = build_model("cnn2", Task("images", (3, 8, 8), 10))
    >>> model(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 10])
    """
    return model_builder(name, task, width=width, norm=norm)()
