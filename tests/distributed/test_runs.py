"""Two processes train to one's bits where the arithmetic allows, and always to the same bits."""

from pathlib import Path

import pytest
import torch

from lpkernels.experiments import records
from lpkernels.experiments.processes.torchrun import ALONE
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from tests.compare import assert_bit_equal
from tests.distributed import runs
from tests.distributed.runs import (
    ALIGNED,
    CLIPPED,
    CONFIGS,
    PLAIN,
    SCHEDULED,
    SCHEDULES,
    WAYS,
    Losses,
    Made,
    noted,
)
from tests.experiments.tiny import bits_of_steps
from tests.support.trainings import assert_same_end, figures
from tests.techniques.loss_scaling.optimizers import assert_same

ways = pytest.mark.parametrize("way", WAYS)
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one process."""
    return noted(ALIGNED, tmp_path_factory.mktemp("aligned"))[0].folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Losses]:
    """The trainer and the losses of one process."""
    return noted(PLAIN, tmp_path_factory.mktemp("plain"))


@ways
def test_chunks_of_a_process_give_the_bits_of_one(made: Made, way: str, aligned: Path) -> None:
    assert_same_end(made.folder / way / "aligned", aligned)


@ways
def test_other_sums_are_nearly_alike(made: Made, way: str, plain: tuple[Trainer, Losses]) -> None:
    losses, expected = made.ranks[0][way]["plain"]["losses"], plain[1]
    assert losses[0] == expected[0]
    assert losses == pytest.approx(expected, rel=1e-2)
    assert losses != expected


@ways
@configs
def test_every_process_ends_with_the_same_weights(made: Made, way: str, config: RunConfig) -> None:
    one, two = (seen[way][config.name] for seen in made.ranks)
    assert one["losses"] == two["losses"]
    assert_same(one["weights"], two["weights"])


@configs
def test_shards_train_to_the_bits_of_whole_weights(made: Made, config: RunConfig) -> None:
    assert_same_end(*(made.folder / way / config.name for way in WAYS))


@ways
def test_another_launch_gives_the_same_bits_and_ranks_draw_others(made: Made, way: str) -> None:
    assert_same_end(made.folder / way / "stochastic", made.folder / "again" / way / "stochastic")
    draws = [seen[way]["stochastic"]["draws"] for seen in made.ranks]
    assert not torch.equal(*draws)
    for rank, drawn in enumerate(draws):
        again = torch.load(made.folder / f"again{rank}.pt", weights_only=True)
        assert_bit_equal(again[way]["draws"], drawn)


@ways
def test_a_stopped_run_goes_on_to_the_same_bits(made: Made, way: str) -> None:
    assert_same_end(made.folder / f"{way}-stopped", made.folder / way / "stochastic")


@ways
def test_one_goes_on_where_two_stopped_and_two_for_one(made: Made, way: str, aligned: Path) -> None:
    trainer = Trainer.resume(made.folder / f"{way}-half", workload=runs.data(ALIGNED))
    assert (trainer.position.epoch, trainer.position.step) == (1, 2)
    trainer.fit()
    assert_same_end(trainer.folder, aligned)
    assert_same_end(made.folder / f"{way}-from-single", aligned)


@ways
def test_records_say_how_many_processes(made: Made, way: str) -> None:
    two = {"count": 2, "sharded": way == "fsdp"}
    assert records.read_run(made.folder / way / "plain").header["processes"] == two
    path = made.folder / f"{way}-from-single" / records.RECORDS
    first, *_, resume, _ = records.read_records(path)
    assert first["processes"] == {"count": 1, "sharded": False}
    assert (resume["type"], resume["processes"]) == ("resume", two)


@ways
def test_clipping_takes_the_norm_over_all_processes(made, way, tmp_path, plain):
    found = made.ranks[0][way]["clipped"]["weights"]
    free = dict(plain[0].model.named_parameters())
    moved = []
    for name, weight in noted(CLIPPED, tmp_path, ALONE)[0].model.named_parameters():
        # The grid of the weight update is 2^-17 of a weight; a draw may fall on its other side.
        torch.testing.assert_close(found[name], weight.detach(), rtol=2e-3, atol=2e-4)
        moved.append(float((free[name] - weight).detach().abs().max()))
    assert max(moved) > 0.01


@pytest.mark.parametrize("index", range(len(SCHEDULES)), ids=SCHEDULES)
def test_schedules_of_processes_are_that_of_one(made: Made, index: int, tmp_path: Path) -> None:
    text = SCHEDULES[index]
    config = SCHEDULED.replace(schedule=text)
    expected = bits_of_steps(Trainer(config, tmp_path, workload=runs.data(config)))
    assert len(expected) == 12 and len(set(expected)) > 1
    one, two = (seen["scheduled"][index] for seen in made.ranks)
    # The mean losses are equal too: they are of all processes, and a checkpoint holds their sum.
    assert one == two and one["whole"] == expected and one["rest"] == expected[5:]
    assert one["losses"][0] == pytest.approx(one["losses"][1])
    last = figures(made.folder / text[:3] / "whole")[-1]
    assert last["bits"] == expected[-1] and "test_accuracy_recalibrated" in last
    assert figures(made.folder / text[:3] / "stopped")[-1]["bitops"] == last["bitops"]


@ways
def test_only_the_first_process_speaks(made: Made, way: str) -> None:
    first, second = (seen[way]["command"] for seen in made.ranks)
    assert second == [(130, ""), (0, "")]
    (stopped, how), (ended, where) = first
    assert (stopped, ended) == (130, 0)
    folder = made.folder / f"{way}-command"
    options = f"train --resume --out {folder}" + " --fsdp" * (way == "fsdp")
    command = f"torchrun --standalone --nproc-per-node 2 -m lpkernels {options}"
    assert how.splitlines()[-1] == f"resume with: {command}"
    assert where.splitlines()[-1] == f"records in {folder}"
    assert records.read_run(folder).finished


def test_every_process_refuses_wrong_input_shares_statistics_and_holds_a_part(made: Made) -> None:
    odd = "batch: 9 examples do not divide by 2 processes; choose a multiple of 2 such as 10"
    for seen in made.ranks:
        batch, checkpoint = seen["refused"]
        assert batch == f"ValueError: {odd}"
        assert checkpoint.startswith("FileNotFoundError: expected a checkpoint at")
    assert not (made.folder / "odd").exists()
    half = torch.full((3,), 0.5)
    for rank, seen in enumerate(made.ranks):
        count = torch.tensor(rank)
        wanted = {"running_mean": half, "running_var": half, "num_batches_tracked": count}
        assert_same(seen["buffers"], wanted)
    one, two = (seen["fsdp"]["plain"] for seen in made.ranks)
    for name, here in one["held"].items():
        assert here + two["held"][name] == one["weights"][name].numel()
    # This layer has two channels, one for each process.
    assert one["held"]["stem.weight"] == two["held"]["stem.weight"] == 9
