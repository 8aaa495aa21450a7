"""Mixed work in one process for 20 minutes, in which memory, file handles and threads stay flat.

A round makes products, layers forward and backward, compiled calls, calls in threads, refused calls
and a run with checkpoints, of shapes and formats that change; some rounds also fork the workers of
a DataLoader. LPK_SOAK_SECONDS is another length.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import lpkernels as lp
from lpkernels.experiments.processes.leases import hold
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.rounding import ROUNDINGS
from tests.experiments.tiny import tiny_workload

SECONDS = float(os.environ.get("LPK_SOAK_SECONDS", "1200"))
#: The share of the time until caches are full, everything is compiled and malloc has its arenas.
WARM_UP = 0.25
SAMPLE_EVERY_S = 4.0
#: Workers of a DataLoader are forked in every so many rounds.
FORK_EVERY = 8
#: What takes microseconds is done so many times in a round.
OFTEN = 40
#: Nearly all of the thousand calls of a round are cheap ones. A growth below this is less than 5
#: bytes for each of them, and Python's smallest object has 16. Of the layers, compiled calls, runs
#: and workers, one that kept more than 4 KiB a round would show.
MOST_BYTES_PER_ROUND = 4096.0
# malloc's M_ARENA_MAX: by itself glibc makes new arenas for new threads, up to 8 for a processor.
_ARENA_MAX = -8

Work = Callable[[random.Random, Path], int]


class Sample(NamedTuple):
    """The process between two rounds. Memory that malloc holds but nobody uses is left out."""

    seconds: float
    bytes: int
    handles: int
    threads: int
    children: int
    rounds: int

    @staticmethod
    def take(seconds: float, rounds: int) -> Sample:
        gc.collect()
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        own = Path("/proc/self")
        pages = int((own / "statm").read_text().split()[1])
        return Sample(
            seconds,
            pages * os.sysconf("SC_PAGE_SIZE"),
            # The folder that is listed has a handle itself.
            len(os.listdir(own / "fd")) - 1,  # noqa: PTH208
            len(os.listdir(own / "task")),  # noqa: PTH208
            len((own / "task" / str(os.getpid()) / "children").read_text().split()),
            rounds,
        )


def run(seconds: float = SECONDS, seed: int = 0) -> dict[str, Any]:
    """Figures of the samples after the warm-up; AssertionError where something grew."""
    chance, counts = random.Random(seed), Counter[str]()
    samples: list[Sample] = []
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)
    start, rounds = time.monotonic(), 0
    want = _same_always()
    with tempfile.TemporaryDirectory() as name:
        while (now := time.monotonic() - start) < seconds:
            warm = now >= WARM_UP * seconds
            if warm and (not samples or now - samples[-1].seconds >= SAMPLE_EVERY_S):
                samples.append(Sample.take(now, rounds))
                assert torch.equal(_same_always(), want), "a product had other bits than at first"
            rounds += 1
            for work in WORK:
                if work is not forks or rounds % FORK_EVERY == 1:
                    calls = work(chance, Path(name))
                    counts[work.__name__] += calls if warm else 0
    return {"calls": dict(counts), **flat(samples)}


def flat(samples: list[Sample]) -> dict[str, Any]:
    """First and last figures of samples, and the line through them; AssertionError if they grow."""
    first, last = samples[0], samples[-1]
    for name in ("handles", "threads", "children"):
        seen = sorted({getattr(sample, name) for sample in samples})
        assert len(seen) == 1, f"{name}: between rounds there were {seen}"
    rounds = [sample.rounds for sample in samples]
    slope, _ = np.polyfit(rounds, [sample.bytes for sample in samples], 1)
    mib = 2.0**-20
    figures = {
        "samples": len(samples), "seconds": round(last.seconds - first.seconds),
        "rounds": last.rounds - first.rounds, "bytes_per_round": round(float(slope)),
        "first_mib": round(first.bytes * mib, 1), "last_mib": round(last.bytes * mib, 1),
        "largest_mib": round(max(sample.bytes for sample in samples) * mib, 1),
        "handles": last.handles, "threads": last.threads, "children": last.children,
    }  # fmt: skip
    assert slope < MOST_BYTES_PER_ROUND, f"memory grows: {figures}"
    return figures


def _format(chance: random.Random) -> str:
    return f"e{chance.randint(2, 8)}m{chance.randint(1, 10)}{chance.choice(['', '_sat', '_nosub'])}"


def _accumulator(chance: random.Random) -> lp.Accumulator:
    chunk = chance.choice([None, chance.randint(1, 64)])
    return lp.Accumulator(_format(chance), chance.choice(list(ROUNDINGS)), chunk=chunk)


@cache
def _recipes() -> list[lp.Recipe]:
    """The named ones and some of any formats; few, so that what is kept for each is soon kept."""
    chance, made = random.Random(0), [lp.recipe(name) for name in lp.recipes()]
    for _ in range(20):
        rounded: dict[str, Any] = {
            name: f"{_format(chance)}:stochastic" for name in ("input", "weight", "grad_output")
        }
        sums: dict[str, Any] = {n: _accumulator(chance) for n in ("fprop", "dgrad", "wgrad")}
        made.append(lp.Recipe(**rounded, **sums))
    return made


def _size(chance: random.Random) -> int:
    return chance.choice([1, 7, 16, 33, 64, chance.randint(1, 96)])


@cache
def _operand() -> Tensor:
    return torch.randn(96, 96, generator=torch.Generator().manual_seed(0))


def _same_always() -> Tensor:
    """A product whose every bit is promised."""
    acc = lp.Accumulator("e6m9", "stochastic", chunk=16)
    return lp.matmul(_operand(), _operand(), acc, generator=torch.Generator().manual_seed(5))


def products(chance: random.Random, folder: Path) -> int:
    for _ in range(OFTEN):
        m, k, n = (_size(chance) for _ in range(3))
        a, b = torch.randn(m, k, requires_grad=True), torch.randn(k, n, requires_grad=True)
        lp.matmul(a, b, _accumulator(chance)).sum().backward()
        lp.quantize(a, _format(chance), chance.choice(list(ROUNDINGS)))
        lp.quantize(b, chance.choice(["block32_fp8_e4m3", "block8_e2m1", "fixed8_f4", "affine5"]))
        packed = lp.pack(lp.quantize(a.detach(), "fp8_e5m2"), "fp8_e5m2")
        lp.unpack(packed, "fp8_e5m2", a.shape)
    return OFTEN * 6


def layers(chance: random.Random, folder: Path) -> int:
    """A network of torch's layers, converted, called, reverted and thrown away.

    The sizes are few: torch's oneDNN keeps what it made for each of the last thousand shapes.
    """
    width, batch = chance.choice([4, 10]), chance.randint(1, 3)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(width, 2, 2, stride=2),
        nn.Flatten(2), nn.LSTM(144, 8, batch_first=True),
    )  # fmt: skip
    lp.convert(model, chance.choice(_recipes()))
    for _ in range(2):
        model(torch.randn(batch, 1, 6, 6))[0].square().sum().backward()
    lp.set_recipe(model, chance.choice(_recipes()))
    model(torch.randn(batch, 1, 6, 6))[0].sum().backward()
    lp.revert(model)
    attention = lp.nn.MultiheadAttention(width, 2, recipe=chance.choice(_recipes()))
    x = torch.randn(chance.choice([1, 5]), batch, width)
    attention(x, x, x)[0].sum().backward()
    return 4


@cache
def _compiled() -> list[Any]:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(lp.matmul(lp.quantize(a, "e4m3"), b, lp.Accumulator("e5m7"))) * 2

    torch.manual_seed(0)
    made = [lp.nn.Linear(96, 8, recipe=name) for name in ("fp8_wang2018", "hfp8_sun2019")]
    calls: list[Any] = [partial(function, b=_operand()), *made]
    return [torch.compile(call) for call in calls]


def compiled(chance: random.Random, folder: Path) -> int:
    calls = _compiled()
    for call in calls:
        # With the second size torch compiles for any size.
        x = torch.randn(chance.randint(2, 40), 96, requires_grad=True)
        call(x).sum().backward()
    return len(calls)


class _Items(Dataset[Tensor]):
    def __init__(self, acc: lp.Accumulator) -> None:
        self.acc = acc

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        return lp.matmul(_operand()[i:], _operand()[:, :5], self.acc)[:9]


def forks(chance: random.Random, folder: Path) -> int:
    """Workers that are forked after this process ran on several threads."""
    items = _Items(lp.Accumulator(_format(chance)))
    loader = DataLoader(items, 2, num_workers=2, multiprocessing_context="fork", timeout=60)
    for number, batch in enumerate(loader):
        assert torch.equal(batch[0], items[2 * number]), "a worker's product has other bits"
    return 2


def refused(chance: random.Random, folder: Path) -> int:
    a, b = torch.randn(3, _size(chance) + 1), torch.randn(_size(chance) + 98, 3)
    layer = lp.nn.Linear(4, 3, recipe="fp8_wang2018")
    calls: list[Callable[[], object]] = [
        lambda: lp.matmul(a, b, _accumulator(chance)),
        lambda: lp.quantize(a, f"e{chance.randint(9, 999)}m3"),
        lambda: lp.quantize(a, "e5m2", "nearest"),
        lambda: lp.quantize(a, "e5m2", out=b),
        lambda: lp.Accumulator(_format(chance), random_bits=25 + chance.randint(0, 999)),
        lambda: lp.unpack(torch.zeros(1, dtype=torch.uint8), "e5m2", a.shape),
        lambda: layer(a.double()),
        lambda: lp.convert(nn.Linear(2, 2), "fp32", include=f"none{chance.randint(0, 9)}"),
        lambda: lp.recipe(f"none{chance.random()}"),
        lambda: torch.ops.lpkernels._quantize_out(a, b, [1], None, 0, 0, "cpu"),
        lambda: torch.ops.lpkernels._quantize_out(a, 3),
        lambda: Trainer.resume(folder / f"none{chance.random()}"),
    ]
    for number, call in enumerate(OFTEN * calls):
        try:
            call()
        except (ValueError, TypeError, RuntimeError, FileNotFoundError):
            continue
        raise AssertionError(f"call {number % len(calls)} of those to be refused was not")
    return OFTEN * len(calls)


def saves(chance: random.Random, folder: Path) -> int:
    """A run that is trained, saved, read and goes on, in a folder that is held meanwhile."""
    place = folder / "run"
    place.mkdir(exist_ok=True)
    config = RunConfig.of(
        model="cnn1", width=2, recipe="fp8_wang2018", epochs=1, batch=10, threads=2,
        seed=chance.randint(0, 999), master="e6m9:stochastic", working="fp8_e4m3",
        dynamic_scale=True, scale_start=2.0**30,
    )  # fmt: skip
    workload = tiny_workload(config.workload)
    with hold(place, print):
        Trainer(config, place, workload=workload).fit()
        Trainer.resume(place, workload=workload).fit()
        state = torch.load(place / "checkpoint.pt", weights_only=True)
    scaler = lp.techniques.loss_scaling.LossScaler()
    scaler.load_state_dict(state["parts"]["loss_scale"]["scaler"])
    for file in place.iterdir():
        file.unlink()
    return 5


def threads(chance: random.Random, folder: Path) -> int:
    """Threads that begin, multiply at the same time and end."""
    accs = [_accumulator(random.Random(chance.random())) for _ in range(3)]

    def multiply(place: int) -> None:
        generator = torch.Generator().manual_seed(place)
        for _ in range(OFTEN):
            found[place] = lp.matmul(_operand(), _operand(), accs[place], generator=generator)

    found: dict[int, Tensor] = {}
    started = [threading.Thread(target=multiply, args=(place,)) for place in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    together = dict(found)
    for place in range(3):
        multiply(place)
        assert torch.equal(found[place], together[place]) or found[place].isnan().any()
    return 6 * OFTEN


# The queues of workers that have ended close while other work is done.
WORK: tuple[Work, ...] = (forks, products, layers, compiled, refused, threads, saves)
