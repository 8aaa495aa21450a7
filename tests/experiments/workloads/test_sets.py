"""The text, the tables and the signals."""

import itertools
import math
import random
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mnist1d import data
from torch import nn
from torch.nn.functional import one_hot

from lpkernels.experiments.workloads import text as module
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.tables import rows, signals
from lpkernels.experiments.workloads.text import examples, text, vocabulary

CONFIG = WorkloadConfig(data="text", width=8)


def test_the_text_is_the_names_of_unicode_3_2() -> None:
    assert (len(text()), len(vocabulary(text()))) == (354743, 39)
    lines = text().splitlines()
    assert (lines[0], lines[-1]) == ("SPACE", "CANCEL TAG")
    assert "LATIN SMALL LETTER A WITH GRAVE" in lines
    # A character of Unicode 4.0 and one of 13.0.
    assert not {"LATIN SMALL LETTER D WITH CURL", unicodedata.name("\U0001fab5")} & set(lines)


def test_other_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(name=lambda character, default: "A" if character < "c" else default)
    monkeypatch.setattr(module.unicodedata, "ucd_3_2_0", other)
    with pytest.raises(RuntimeError, match=r"of hash 03ce3aea0397, and this Python's unicodedata"):
        text.__wrapped__()


def test_train_and_test_share_no_character() -> None:
    train, test = examples()
    assert (train.shape, test.shape) == ((4913, 65), (544, 65))
    letters = vocabulary(text())
    # Put back in order, the two sets are the text.
    is_test = torch.arange(len(train) + len(test)) // 16 % 10 == 9
    both = torch.empty(len(is_test), 65, dtype=torch.int64)
    both[is_test], both[~is_test] = test, train
    joined = "".join(letters[number] for number in both.flatten().tolist())
    assert joined == text()[: len(joined)]
    assert len(text()) - len(joined) < 65


def test_some_of_the_text_stands_evenly_in_it() -> None:
    whole, some = (find(CONFIG.replace(train_size=n)).train for n in (0, 2400))
    assert (len(whole), len(some)) == (4913, 2400)
    tokens, following = some.plan(0, 0)(0, 2400)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    train, _ = examples()
    found = {tuple(row) for row in tokens.tolist()}
    # The last one, too, is of the end of the text.
    assert tuple(train[4910, :-1].tolist()) in found and tuple(train[1, :-1].tolist()) not in found
    with pytest.raises(ValueError, match="train_size: expected at most 4913 for text, got 4914"):
        find(CONFIG.replace(train_size=4914))


class Guess(nn.Module):
    """Gives the right character and one other the whole probability, half each."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        right = one_hot(tokens.roll(-1, dims=1), 39).float()
        return 200 * (right + right.roll(1, dims=2))


def test_bits_per_character_and_the_loss_that_is_the_mean_of_its_characters() -> None:
    work = find(CONFIG)
    tokens = torch.arange(64).remainder(39).expand(3, 64)
    sums = work.measure(Guess(), (tokens, tokens.roll(-1, dims=1)))
    figures = work.score({name: float(value) for name, value in sums.items()}, 3)
    assert figures["test_bits_per_char"] == pytest.approx(1)
    assert figures["test_loss"] == pytest.approx(math.log(2))
    assert work.metric.field in figures
    assert not work.metric.higher
    work = find(CONFIG)
    torch.manual_seed(0)
    model, batch = work.model(), work.train.plan(0, 0)(0, 3)
    with torch.no_grad():
        outcome = work.loss(model, batch)
        one = work.loss(model, tuple(tensor[1:2] for tensor in batch))
    assert float(outcome.losses[1]) == pytest.approx(float(one.losses[0]))
    # Before training every character is about as likely as any.
    assert abs(float(outcome.losses.mean()) - math.log(39)) < 0.5
    assert 0 <= float(outcome.sums["accuracy"]) <= 3


@pytest.mark.parametrize("name", ["lstm1", "gpt1"])
def test_models_see_no_character_that_follows(name: str) -> None:
    work = find(WorkloadConfig(data="text", model=name, width=8))
    torch.manual_seed(0)
    model, tokens = work.model(), work.test[0][0][:2]
    changed = tokens.clone()
    changed[:, 40:] = 0
    with torch.no_grad():
        one, two = model(tokens), model(changed)
    assert torch.allclose(one[:, :40], two[:, :40], atol=1e-6)
    assert not torch.allclose(one[:, 41:], two[:, 41:], atol=1e-6)


# Rows to train on and to test on, columns, classes.
SIZES = {"iris": (102, 48, 4, 3), "wine": (120, 58, 13, 3), "breast_cancer": (380, 189, 30, 2)}


@pytest.mark.parametrize("name", SIZES)
def test_rows_columns_and_classes_are_normalised_by_the_rows_to_train_on(name: str) -> None:
    (x, y), (tested, answers) = rows(name)
    train, test, columns, classes = SIZES[name]
    assert (x.shape, tested.shape) == ((train, columns), (test, columns))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert set(y.tolist()) == set(answers.tolist()) == set(range(classes))
    assert find(WorkloadConfig(data=name)).model().head.out_features == classes
    mean, deviation = x.double().mean(dim=0), x.double().std(dim=0, unbiased=False)
    assert mean.abs().max() < 1e-6 and (deviation - 1).abs().max() < 1e-6


def test_the_signals_are_those_of_the_package_4000_to_train_and_1000_to_test() -> None:
    work = find(WorkloadConfig(data="mnist1d"))
    x, y = work.train.plan(0, 0)(0, 64)
    assert (x.shape, x.dtype, y.dtype) == ((64, 1, 40), torch.float32, torch.int64)
    assert [len(y) for _, y in work.test] == [256, 256, 256, 232]
    assert work.model().head.out_features == 10
    (x, y), (test_x, _) = signals()
    both = torch.cat([x, test_x]).double()
    # The package centres and scales all of them together.
    assert abs(float(both.mean())) < 1e-6
    assert abs(float(both.std(correction=0)) - 1) < 1e-6
    assert len(work.train) == len(y) == 4000
    assert (torch.bincount(y) - 400).abs().max() < 60


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes fifty signals instead of the 5,000, which take a second."""
    arguments = data.get_dataset_args()
    arguments.num_samples = 50
    monkeypatch.setattr(data, "get_dataset_args", lambda: arguments)


@pytest.mark.usefixtures("fewer")
def test_random_states_stay_and_do_not_matter() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seed(number: int) -> None:
        for start in (random.seed, np.random.seed, torch.manual_seed):
            start(number)

    seed(5)
    expected = draws()
    seed(5)
    (x, y), _ = signals.__wrapped__()
    assert draws() == expected and len(x) == 40
    seed(6)
    (again, labels), _ = signals.__wrapped__()
    assert torch.equal(x, again) and torch.equal(y, labels)


def test_seeds_of_streams_are_pinned() -> None:
    # If this seed changes, so do the figures of every run.
    assert stream_seed(0, "epoch", 0) == 5326116194759978245
    places = itertools.product(range(3), ("epoch", "test"), range(3))
    assert len({stream_seed(*place) for place in places}) == 18
    assert 0 <= stream_seed(0, "init") < 2**63
