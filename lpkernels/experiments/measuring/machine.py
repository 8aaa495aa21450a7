"""Versions, processor, GPU and commit: the things that a figure may depend on."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lpkernels
from lpkernels import _build


def environment(device: str) -> dict[str, Any]:
    """Versions, machine and commit, as plain values: a figure may depend on them."""
    versions = {
        "lpkernels": lpkernels.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    return {
        "versions": versions,
        "device": device_name(device),
        "platform": platform.platform(),
        "commit": _build.commit(),
    }


def device_name(device: str) -> str:
    """The model of the processor or GPU that `device` is."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cuda_status() -> str:
    """The GPU and its CUDA version, or why there is none."""
    if torch.cuda.is_available():
        return f"{device_name('cuda')}, CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        return "none: this torch is built without CUDA"
    return f"none: torch is built for CUDA {torch.version.cuda} but finds no device"
