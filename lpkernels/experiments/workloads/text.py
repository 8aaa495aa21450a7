"""A text to continue, character by character: the names of the characters of Unicode 3.2.

Of the texts that every Python has, this one never changes: a character's name is for ever
(Unicode's stability policy), and the standard library keeps the list of version 3.2, which
internationalised domain names need. It has 354,743 characters of 39 kinds.
"""

import hashlib
import math
import unicodedata
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import model_builder
from lpkernels.experiments.workloads.workload import (
    Batch,
    Metric,
    Outcome,
    TensorSet,
    Workload,
    batches,
    mean_of_examples,
    measured_on_cpu,
)

BITS = Metric(field="test_bits_per_char", label="bits per character", higher=False, percent=False)
#: The most characters that a network sees; each example has one more.
LENGTH = 64
# The last of every ten stretches of this many examples is for testing. A stretch has 1,040
# characters, some 40 names, so that few test examples begin in the middle of a name of training.
_STRETCH = 16
# Names that count up or spell their code teach a network nothing.
_COUNTED = ("CJK UNIFIED IDEOGRAPH-", "CJK COMPATIBILITY IDEOGRAPH-", "HANGUL SYLLABLE ")
_SHA256 = "03ce3aea0397e841afdbafb4f732c6cb6fdca0bdb370d0a9cdbdbdcae33a3ee3"


def workload(config: WorkloadConfig) -> Workload:
    train, test = examples()
    size, count = config.train_size or len(train), len(train)
    if size > count:
        raise ValueError(f"train_size: expected at most {count} for text, got {size}")
    # The examples that are kept stand evenly in the text.
    train = train[torch.arange(size) * count // size]
    task = Task("text", (LENGTH,), len(vocabulary(text())))
    return Workload(
        "text",
        model_builder(config.model, task, width=config.width, norm=config.norm),
        TensorSet((train[:, :-1], train[:, 1:])),
        batches(test[:, :-1], test[:, 1:]),
        character_losses,
        measured_on_cpu(character_losses),
        BITS,
        bits_per_character,
    )


@cache
def text() -> str:
    """The names in the order of their characters, one a line.

    Raises: RuntimeError: this Python's names are not those of Unicode 3.2.
    """
    name = unicodedata.ucd_3_2_0.name
    names = (name(chr(code), "") for code in range(0x110000))
    content = "\n".join(n for n in names if n and not n.startswith(_COUNTED))
    own = hashlib.sha256(content.encode()).hexdigest()
    if own != _SHA256:
        raise RuntimeError(
            f"text: expected the names of Unicode 3.2, of hash {_SHA256[:12]}, and this Python's "
            f"unicodedata.ucd_3_2_0 has others, of hash {own[:12]}; use another Python"
        )
    return content


def vocabulary(content: str) -> list[str]:
    """The characters that occur, ascending; a character's number is its place."""
    return sorted(set(content))


@cache
def examples() -> tuple[Tensor, Tensor]:
    """The text in examples of 65 characters, (N, 65) int64: training and test.

    Examples share no character, and what is left at the end of the text is dropped.
    """
    content = text()
    numbers = {character: number for number, character in enumerate(vocabulary(content))}
    tokens = torch.tensor([numbers[character] for character in content])
    tokens = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    test = torch.arange(len(tokens)) // _STRETCH % 10 == 9
    return tokens[~test], tokens[test]


def character_losses(model: nn.Module, batch: Batch) -> Outcome:
    """For each example the mean cross entropy of its characters, and the share that was right."""
    tokens, following = batch
    output = model(tokens)
    losses = cross_entropy(output.transpose(1, 2), following, reduction="none").mean(dim=1)
    right = (output.argmax(dim=2) == following).float().mean(dim=1).sum()
    return Outcome(losses, {"accuracy": right})


def bits_per_character(sums: Mapping[str, float], count: int) -> dict[str, float]:
    """The mean cross entropy of a character, in nats and in bits, and the share that was right."""
    means = mean_of_examples(sums, count)
    return {**means, BITS.field: means["test_loss"] / math.log(2)}
