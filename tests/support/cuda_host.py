"""The kernels of csrc/cuda on the host: the module lpk_cuda_host, which `make test` builds.

It has the functions of lpkernels._C that begin with ``cuda_``, bound by the same code, with the
kernels' own index maps and arithmetic run thread by thread (csrc/tests/cuda/cuda_run.cpp), and the
certificate of csrc/common.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.cuda import BACKEND, _conv, _launch, _products

_BUILD = Path(__file__).resolve().parents[2] / "build" / str(sys.implementation.cache_tag)


def reason() -> str:
    """Why the module cannot be used; "" if it can."""
    if next(_BUILD.glob("lpk_cuda_host.*so"), None) is None:
        return f"{_BUILD}/lpk_cuda_host is missing; `make test` builds it"
    return ""


@lru_cache(maxsize=1)
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "lpk_cuda_host", next(_BUILD.glob("lpk_cuda_host.*so"))
    )
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@contextlib.contextmanager
def replaced(parts: Iterable[ModuleType], module: Callable[[], Any]) -> Iterator[None]:
    """A block in which modules of the cuda adapter call another module's kernels, on tensors of the
    CPU."""
    with contextlib.ExitStack() as patches:
        for part in parts:
            for name, value in (
                ("module", module),
                ("on_device", lambda x: contextlib.nullcontext()),
                ("stream", lambda x: 0),
            ):
                patches.enter_context(mock.patch.object(part, name, value))
        yield


@contextlib.contextmanager
def on_host() -> Iterator[ModuleType]:
    """A block in which products of the cuda adapter run here, on tensors of the CPU."""
    with replaced((_conv, _products, _launch), load):
        yield load()


def certificate(
    acc: Accumulator, left: Sequence[int], right: Sequence[int], digits: int, terms: int
) -> dict[str, Any]:
    """The certificate of csrc/common/certificate.h for operands with the facts (width, lowest,
    highest); the test is skipped where the module is missing."""
    if missing := reason():
        pytest.skip(missing)
    module: Any = load()
    return module.certificate(acc.to_ints(), [1, *left], [1, *right], digits, terms)


def draw(rng: str, *key: int) -> int:
    """The draw of csrc/common/rng.h with this key: seed, site, row, col, k and random_bits."""
    if missing := reason():
        pytest.skip(missing)
    module: Any = load()
    return int(module.draw(rng, *key))


def needs_device(test: Any) -> Any:
    reason = f"cuda: {BACKEND.why_not()}"
    return pytest.mark.cuda(pytest.mark.skipif(not BACKEND.available(), reason=reason)(test))
