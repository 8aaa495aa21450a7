"""Networks by name: families of networks, and how a family becomes known."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from torch import nn

from lpkernels.formats.elsewhere import nearest

#: The purposes of a network.
Kind = Literal["images", "signals", "vectors", "text", "denoising"]
#: The kind of examples to classify, by the dimensions of their batches.
KINDS: dict[int, Kind] = {2: "vectors", 3: "signals", 4: "images"}


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


#: build(task, depth, width, norm) makes a network, its weights from torch's generator.
Builder = Callable[[Task, int, int, str], nn.Module]


class Family(NamedTuple):
    """Networks that differ in depth, width and normalisation; the fields are those of `family`."""

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

B = TypeVar("B", bound=Builder)


def family(
    name: str, *kinds: Kind, width: int, depth: int = 0, norms: tuple[str, ...] = ("none",)
) -> Callable[[B], B]:
    """Registers a family of networks, as a decorator of the class or function that builds its
    members: build(task, depth, width, norm).

    First layers are called `stem`, last ones `head`.

    Args:
        name: the beginning of the members' names, which end in their depth.
        kinds: of the tasks that it is for.
        width: the width where 0 is asked for.
        depth: of the name without a number; 0: there is no depth, and no number.
        norms: the values that `norm` may have, the usual one first.
    Raises: ValueError: a family of that name exists.
    """

    def register(build: B) -> B:
        other = FAMILIES.get(name)
        if other is not None and other.build.__qualname__ != build.__qualname__:
            raise ValueError(f"family: one called {name!r} exists already")
        FAMILIES[name] = Family(name, build, kinds, depth, width, norms)
        return build

    return register


def model_builder(
    name: str, task: Task, *, width: int = 0, norm: str = ""
) -> Callable[[], nn.Module]:
    """A function that makes the network `name` for `task`, with weights from torch's generator.

    Args:
        name: "resnet8", "cnn3", "lstm1", ...; without a number it has the family's usual depth.
        task: the task that it is built for.
        width: channels or units of the first layer; 0: the usual.
        norm: "batch", "layer", "none", or "" for the usual.
    Raises: ValueError: a name of another form, a model for other data, or a normalisation that it
        does not have.
    """
    letters = name.rstrip("0123456789")
    members = FAMILIES.get(name) or FAMILIES.get(letters)
    exists = members is not None and (members.depth > 0 or members.name == name)
    if members is None or not exists or task.kind not in members.kinds:
        forms = sorted(f.form for f in FAMILIES.values() if task.kind in f.kinds)
        listed = nearest(name, forms, "docs/experiments.md lists all")
        kinds = f", which is for {' and '.join(members.kinds)}" if members and exists else ""
        raise ValueError(
            f"model: expected one of {listed}, with a number for the depth, got {name!r}{kinds}; "
            f"the data are {task.kind}"
        )
    if norm and norm not in members.norms:
        raise ValueError(f"norm: {members.form} has {' or '.join(members.norms)}, got {norm!r}")
    depth = members.depth if members.name == name else int(name[len(letters) :])
    if width < 0 or depth < bool(members.depth):
        raise ValueError(
            f"{name}: depth and width must be at least 1 (width 0: the usual), got width {width}"
        )
    return partial(members.build, task, depth, width or members.width, norm or members.norms[0])


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
