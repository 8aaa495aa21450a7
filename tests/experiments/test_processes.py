"""What processes agree on, as far as one process can tell; the rest is in tests/distributed."""

import pytest

from lpkernels.experiments.processes.torchrun import ALONE, Processes, joined
from tests.loops import each

TWO = (Processes(0, 2), Processes(1, 2))


@each("count", [1, 2, 3, 4, 7])
@each("images", [7, 8, 13])
def test_shares_are_the_batch_in_order_and_even(images: int, count: int) -> None:
    shares = [list(range(images))[Processes(rank, count).share(images)] for rank in range(count)]
    assert [i for share in shares for i in share] == list(range(images))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@each(
    "batch, images, match",
    [
        (63, 640, "batch: 63 examples do not divide by 2 processes; choose a multiple of 2 .* 64"),
        (1, 640, "choose a multiple of 2 such as 2"),
        (64, 641, "of 641 examples in batches of 64 the last batch has 1, fewer than the 2 proc"),
    ],
)
def test_batches_that_leave_a_process_without_work(batch: int, images: int, match: str) -> None:
    TWO[0].check_batches(64, 640)
    TWO[0].check_batches(64, 642)
    ALONE.check_batches(batch, images)
    with pytest.raises(ValueError, match=match):
        TWO[0].check_batches(batch, images)


def test_each_process_has_a_gpu_of_its_own() -> None:
    second = Processes(3, 4, local_rank=1)
    assert second.device("cpu") == "cpu"
    assert second.device("cuda") == "cuda:1"
    assert ALONE.device("cuda:1") == "cuda:1"
    with pytest.raises(ValueError, match="4 processes cannot share 'cuda:1'; give 'cuda'"):
        second.device("cuda:1")


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with joined() as processes:
        assert processes is ALONE
    with (
        pytest.raises(ValueError, match=r"--fsdp spreads the weights .* start them with torchrun"),
        joined(sharded=True),
    ):
        pass


def test_one_process_under_torchrun_is_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with joined() as processes:
        assert processes is ALONE
    assert processes.sums([1.5, True]) == [1.5, 1]
    assert processes.on_first(lambda: 7) == 7
