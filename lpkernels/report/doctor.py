"""The report on this installation and its gaps; it needs none of the extras' packages."""

import importlib.metadata
import os
import platform
import shutil

import torch

import lpkernels
from lpkernels import _build
from lpkernels.experiments.measuring import machine

# The packages, and the extra that brings each.
_PACKAGES = {
    "numpy": "",
    "triton": "[triton]",
    **dict.fromkeys(("typer", "rich", "matplotlib", "scikit-learn", "joblib"), "[lab]"),
}
_TOOLS = {
    "c++": ("c++", "g++", "clang++"),
    "cmake": ("cmake",),
    "ninja": ("ninja",),
    "nvcc": ("nvcc",),
}
_VARIABLES = (
    "LPKERNELS_BACKEND",
    "LPKERNELS_ISA",
    "LPKERNELS_CUDA",
    "LPKERNELS_ISAS",
    "LPKERNELS_DEBUG",
    "LPKERNELS_REQUIRE",
)


def versions() -> str:
    """The version of lpkernels in a line of its own; torch's, and the available backends."""
    status = lpkernels.backends.status()
    backends = ", ".join(name for name in status if status[name] == "available")
    return f"lpkernels {lpkernels.__version__}\ntorch {torch.__version__}, backends: {backends}"


def report() -> str:
    """Versions, processor, GPU, build tools, the environment variables that lpkernels reads, and
    every backend: available, or the reason it is not. Lines of plain text."""
    rows = [
        ("lpkernels", lpkernels.__version__),
        ("commit", _build.commit() or "not known"),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", torch.__version__),
        *((package, _version(package)) for package in _PACKAGES),
        ("processor", _processor()),
        ("instruction set", _instruction_set()),
        ("CUDA device", machine.cuda_status()),
        *((tool, _place(commands)) for tool, commands in _TOOLS.items()),
        *((variable, os.environ.get(variable, "not set")) for variable in _VARIABLES),
        *((f"backend {name}", status) for name, status in lpkernels.backends.status().items()),
    ]
    width = max(len(what) for what, _ in rows)
    return "\n".join(f"{what.ljust(width)}  {text}" for what, text in rows)


def _processor() -> str:
    return (
        f"{machine.device_name('cpu')}, {os.cpu_count()} CPUs, "
        f"torch uses {torch.get_num_threads()} threads"
    )


def _place(commands: tuple[str, ...]) -> str:
    places = [place for place in map(shutil.which, commands) if place]
    return places[0] if places else "not on PATH (only needed to build the extension)"


def _instruction_set() -> str:
    """The instruction set of the compiled CPU kernels, or why nothing is known about it.

    The factor of scalar kernels is that of bench/results/general-path.jsonl, on an AMD EPYC."""
    status = lpkernels.backends.status()["cpu"]
    if status != "available":
        return f"unknown: {status}"
    module = _build.load_extension()
    isa, compiled = module.isa(), module.compiled_sets()
    note = ": 36 to 1038 times slower than AVX-512" if isa == "scalar" else ""
    if better := _build.better_set(module):
        note += f"; this processor has {better}: install again to compile it"
    elif compiled == module.sets_of_processor() == ["scalar"]:
        note += "; this processor has no set that could be compiled"
    return f"{isa} of {', '.join(compiled)}{note}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed: pip install 'lpkernels{_PACKAGES[package]}'"
