"""Two processes train to one's bits where the arithmetic allows, and always to the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments import records
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from tests.compare import assert_bit_equal
from tests.distributed.runs import (
    ALIGNED,
    CLIPPED,
    CONFIGS,
    PLAIN,
    SCHEDULES,
    WAYS,
    adversaries,
    data,
    scheduled,
    two_turns,
)
from tests.distributed.worker import Noting
from tests.experiments.scheduled import trained_with

Made = tuple[Path, Path]
ways = pytest.mark.parametrize("way", WAYS)
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def seen(folder: Path, rank: int) -> dict[str, Any]:
    return torch.load(folder / f"rank{rank}.pt", weights_only=True)


def figures(folder: Path) -> list[dict[str, Any]]:
    """The epoch records without the time, which no two runs share."""
    epochs = records.read_run(folder).epochs
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]


def assert_same_checkpoint(one: Path, two: Path) -> None:
    a, b = (torch.load(f / "checkpoint.pt", weights_only=True) for f in (one, two))
    assert a["position"] == b["position"]
    assert_bit_equal(a["rng"], b["rng"])
    assert_same_tensors(a["model"], b["model"])
    buffers, others = (s["optimizer"]["state"] for s in (a, b))
    assert buffers.keys() == others.keys()
    for key in buffers:
        assert_bit_equal(buffers[key]["momentum_buffer"], others[key]["momentum_buffer"])


def assert_same_tensors(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert_bit_equal(one[name], two[name])


def single(config: RunConfig, folder: Path) -> Noting:
    trainer = Noting(config, folder, workload=data(config))
    trainer.losses = []
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Noting:
    return single(ALIGNED, tmp_path_factory.mktemp("aligned"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Noting:
    return single(PLAIN, tmp_path_factory.mktemp("plain"))


@ways
def test_chunks_of_a_process_and_float32_between_them_give_the_bits_of_one(
    made: Made, way: str, aligned: Noting
) -> None:
    assert_same_checkpoint(made[0] / way / "aligned", aligned.folder)
    assert figures(made[0] / way / "aligned") == figures(aligned.folder)


@ways
def test_other_sums_give_the_first_loss_of_one_and_later_ones_nearly(
    made: Made, way: str, plain: Noting
) -> None:
    losses = seen(made[0], 0)[f"{way}-plain"]["losses"]
    assert losses[0] == plain.losses[0]
    assert losses == pytest.approx(plain.losses, rel=1e-2)
    assert losses != plain.losses


@ways
@configs
def test_every_process_ends_with_the_same_weights(made: Made, way: str, config: RunConfig) -> None:
    one, two = (seen(made[0], rank)[f"{way}-{config.name}"] for rank in (0, 1))
    assert one["losses"] == two["losses"]
    assert_same_tensors(one["weights"], two["weights"])


@configs
def test_shards_train_to_the_bits_of_whole_weights(made: Made, config: RunConfig) -> None:
    ddp, fsdp = (made[0] / way / config.name for way in WAYS)
    assert_same_checkpoint(ddp, fsdp)
    assert figures(ddp) == figures(fsdp)


@ways
@configs
def test_another_launch_gives_the_same_bits(made: Made, way: str, config: RunConfig) -> None:
    one, two = (folder / way / config.name for folder in made)
    assert_same_checkpoint(one, two)
    assert figures(one) == figures(two)


@ways
def test_ranks_draw_different_bits_and_the_same_again(made: Made, way: str) -> None:
    draws = [
        [seen(folder, rank)[f"{way}-stochastic"]["draws"] for rank in (0, 1)] for folder in made
    ]
    assert not torch.equal(draws[0][0], draws[0][1])
    for first, again in zip(*draws, strict=True):
        assert_bit_equal(first, again)


@ways
def test_a_stopped_run_goes_on_to_the_same_bits(made: Made, way: str) -> None:
    stopped, whole = made[0] / f"{way}-stopped", made[0] / way / "stochastic"
    assert_same_checkpoint(stopped, whole)
    assert figures(stopped) == figures(whole)


@ways
def test_one_process_goes_on_where_two_stopped(made: Made, way: str, aligned: Noting) -> None:
    trainer = Trainer.resume(made[0] / f"{way}-half", workload=data(ALIGNED))
    assert (trainer.position.epoch, trainer.position.step) == (1, 2)
    trainer.fit()
    assert_same_checkpoint(trainer.folder, aligned.folder)


@ways
def test_two_processes_go_on_where_one_stopped(made: Made, way: str, aligned: Noting) -> None:
    assert_same_checkpoint(made[0] / f"{way}-from-single", aligned.folder)


@ways
def test_records_say_how_many_processes(made: Made, way: str) -> None:
    two = {"count": 2, "sharded": way == "fsdp"}
    assert records.read_run(made[0] / way / "plain").header["processes"] == two
    path = made[0] / f"{way}-from-single" / records.RECORDS
    first, *_, resume, _ = records.read_records(path)
    assert first["processes"] == {"count": 1, "sharded": False}
    assert (resume["type"], resume["processes"]) == ("resume", two)


@ways
def test_clipping_takes_the_norm_over_all_processes(
    made: Made, way: str, tmp_path: Path, plain: Noting
) -> None:
    alone = single(CLIPPED, tmp_path)
    found = seen(made[0], 0)[f"{way}-clipped"]
    weights = dict(alone.model.named_parameters())
    for name, weight in weights.items():
        # The grid of the weight update is 2^-17 of a weight; a draw may fall on its other side.
        torch.testing.assert_close(found["weights"][name], weight.detach(), rtol=2e-3, atol=2e-4)
    free = dict(plain.model.named_parameters())
    moved = [float((free[name] - weights[name]).detach().abs().max()) for name in weights]
    assert max(moved) > 0.01


def test_turns_train_under_ddp_to_the_weights_of_one_process(made: Made, tmp_path: Path) -> None:
    alone = Trainer(two_turns(), tmp_path, workload=adversaries())
    alone.fit()
    one, two = (seen(made[0], rank)["turns"] for rank in (0, 1))
    assert_same_tensors(one["weights"], two["weights"])
    for name, weight in alone.model.state_dict().items():
        torch.testing.assert_close(one["weights"][name], weight)
    assert "have 2 turns" in one["refused"] and "leave --fsdp out" in one["refused"]
    epochs, expected = figures(made[0] / "turns"), figures(tmp_path)
    for got, wanted in zip(epochs, expected, strict=True):
        assert got == pytest.approx(wanted)


@pytest.mark.parametrize("index", range(len(SCHEDULES)), ids=SCHEDULES)
def test_processes_have_the_schedule_of_one_and_after_a_stop(
    made: Made, index: int, tmp_path: Path
) -> None:
    text = SCHEDULES[index]
    expected = trained_with(scheduled(text, tmp_path))
    assert len(expected) == 12 and len(set(expected)) > 2
    one, two = (seen(made[0], rank)["scheduled"][index] for rank in (0, 1))
    # The best loss is equal too: it is the loss of all processes, whose sum a checkpoint holds.
    assert one == two and one["whole"] == one["stopped"] == expected
    assert one["best"][0] == pytest.approx(one["best"][1])
    last = figures(made[0] / text[:3] / "whole")[-1]
    assert last["bits"] == expected[-1] and "test_accuracy_recalibrated" in last
    assert figures(made[0] / text[:3] / "stopped")[-1]["bitops"] == last["bitops"]


def test_wrong_input_is_refused_in_every_process(made: Made) -> None:
    for rank in (0, 1):
        batch, checkpoint = seen(made[0], rank)["refused"]
        assert batch == (
            "ValueError: batch: 9 examples do not divide by 2 processes; choose a multiple of 2 "
            "such as 10"
        )
        assert checkpoint.startswith("FileNotFoundError: expected a checkpoint at")
    assert not (made[0] / "odd").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_running_statistics_are_the_mean_of_the_processes(made: Made, rank: int) -> None:
    buffers = seen(made[0], rank)["buffers"]
    half = torch.full((3,), 0.5)
    assert_bit_equal(buffers["running_mean"], half)
    assert_bit_equal(buffers["running_var"], half)
    assert buffers["num_batches_tracked"] == rank


def test_sharded_processes_hold_a_part_each(made: Made) -> None:
    one, two = (seen(made[0], rank)["fsdp-plain"] for rank in (0, 1))
    for name, here in one["held"].items():
        assert here + two["held"][name] == one["weights"][name].numel()
    # This layer has two channels, one for each process.
    assert one["held"]["stem.weight"] == two["held"]["stem.weight"] == 9
