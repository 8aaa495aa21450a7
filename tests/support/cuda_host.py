"""The kernels of csrc/cuda on the host: the module lpk_cuda_host, built with the C++ tests.

Its functions are those of lpkernels._C that begin with ``cuda_``, bound by the same code, with the
kernels' own index maps and arithmetic run thread by thread (csrc/tests/cuda/cuda_run.cpp).
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from unittest import mock

from lpkernels.backends.cuda import _conv, _launch, _products, _update

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
def on_host() -> Iterator[ModuleType]:
    """A block in which products and updates of the cuda adapter run here, on tensors of the CPU."""
    with contextlib.ExitStack() as patches:
        for part in (_conv, _products, _launch, _update):
            replaced = (
                ("module", load),
                ("on_device", lambda x: contextlib.nullcontext()),
                ("stream", lambda x: 0),
            )
            for name, value in replaced:
                patches.enter_context(mock.patch.object(part, name, value))
        yield load()
