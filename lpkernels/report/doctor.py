"""What this installation has, what it lacks, and why."""

import importlib.metadata
import os
import platform
import shutil

from rich.table import Table
from rich.text import Text

import lpkernels
from lpkernels.experiments.measuring import machine

_PACKAGES = ("torch", "numpy", "triton", "typer", "rich", "matplotlib", "scikit-learn", "joblib")
_TOOLS = {
    "c++": ("c++", "g++", "clang++"),
    "cmake": ("cmake",),
    "ninja": ("ninja",),
    "nvcc": ("nvcc",),
}
_VARIABLES = ("LPKERNELS_BACKEND", "LPKERNELS_ISA", "LPKERNELS_CUDA", "LPKERNELS_DEBUG")


def versions() -> str:
    """The version of lpkernels in a line of its own; torch's, and the available backends."""
    status = lpkernels.backends.status()
    backends = ", ".join(name for name in status if status[name] == "available")
    return f"lpkernels {lpkernels.__version__}\ntorch {_version('torch')}, backends: {backends}"


def backend_table() -> Table:
    """Every backend: available, or the reason it is not."""
    table = Table(title="Backends")
    table.add_column("backend")
    table.add_column("status")
    for name, status in lpkernels.backends.status().items():
        table.add_row(name, Text(status, style="green" if status == "available" else ""))
    return table


def installation_table() -> Table:
    """Versions, processor, GPU, build tools and the environment variables that lpkernels reads."""
    table = Table(title="Installation")
    table.add_column("what")
    table.add_column("found")
    table.add_row("lpkernels", lpkernels.__version__)
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        table.add_row(package, _version(package))
    processor = f"{machine.device_name('cpu')}, {os.cpu_count()} CPUs"
    table.add_row("processor", f"{processor}, torch uses {machine.threads()} threads")
    table.add_row("instruction set", _instruction_set())
    table.add_row("CUDA device", machine.cuda_status())
    for tool, commands in _TOOLS.items():
        places = [place for place in map(shutil.which, commands) if place]
        table.add_row(
            tool, places[0] if places else "not on PATH (only needed to build the extension)"
        )
    for variable in _VARIABLES:
        table.add_row(variable, os.environ.get(variable, "not set"))
    return table


def _instruction_set() -> str:
    """The instruction set of the compiled CPU kernels, or why nothing is known about it."""
    status = lpkernels.backends.status()["cpu"]
    if status != "available":
        return f"unknown: {status}"
    return str(getattr(lpkernels.backends.get("cpu"), "isa", lambda: "unknown")())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        extra = "" if package in ("torch", "numpy", "triton") else ': pip install "lpkernels[lab]"'
        return f"not installed{extra}"
