"""The text: what it is, how it is split, and its figures."""

import math
import unicodedata
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.sets import text as module
from lpkernels.experiments.workloads.sets.text import examples, text, vocabulary

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


def test_each_character_is_followed_by_the_next() -> None:
    tokens, following = find(CONFIG).train.plan(0, 0).batch(0, 5)
    assert tokens.shape == following.shape == (5, 64)
    assert torch.equal(tokens[:, 1:], following[:, :-1])


class Guess(nn.Module):
    """Gives the right character and one other the whole probability, half each."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        right = one_hot(tokens.roll(-1, dims=1), 39).float()
        return 200 * (right + right.roll(1, dims=2))


def test_bits_per_character() -> None:
    work = find(CONFIG)
    tokens = torch.arange(64).remainder(39).expand(3, 64)
    sums = work.measure(Guess(), (tokens, tokens.roll(-1, dims=1)))
    figures = work.score(sums, 3)
    assert figures["test_bits_per_char"] == pytest.approx(1)
    assert figures["test_loss"] == pytest.approx(math.log(2))
    assert work.metric.field in figures
    assert not work.metric.higher


def test_the_loss_of_an_example_is_the_mean_of_its_characters() -> None:
    work = find(CONFIG)
    torch.manual_seed(0)
    model, batch = work.model(), work.train.plan(0, 0).batch(0, 3)
    with torch.no_grad():
        outcome = work.turns[0].loss(model, batch)
        one = work.turns[0].loss(model, tuple(tensor[1:2] for tensor in batch))
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
