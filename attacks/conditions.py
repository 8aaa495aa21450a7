"""The tests pass from an installed wheel, in a path with spaces, read-only, offline, in any order.

A clean clone is built into a wheel, which is installed without dependencies into an environment of
its own; a .pth file lets it see the packages beside it. The user nobody runs the tests, in a name
space without a network but for the machine's own address. It takes root to arrange this, and Linux.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
#: Each with whether the sources of the package lie beside the tests.
PASSES: tuple[tuple[str, bool, Sequence[str]], ...] = (
    ("package", False, ("tests", "--ignore=tests/project")),
    # These tests read the sources.
    ("project", True, ("tests/project",)),
)
# If only its owner may enter a folder above the interpreter, the tests see nothing else in there.
_CONFINED = """
set -e
ip link set lo up
if [ -n "$CLOSED" ]; then
  mount --bind "$INTERPRETER" "$SHELF"
  mount -t tmpfs -o mode=755 none "$CLOSED"
  mkdir -p "$INTERPRETER"
  mount --bind "$SHELF" "$INTERPRETER"
fi
exec setpriv --reuid nobody --regid nogroup --clear-groups "$@"
"""
_NOBODY_MAY_ENTER = 0o755


def run(
    passes: Sequence[tuple[str, bool, Sequence[str]]] = PASSES,
    packages: Path | None = None,
    wheel: Path | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """How many tests passed and were skipped; AssertionError with those that failed.

    Args:
        passes: runs of pytest, each with whether it has the sources beside it.
        packages: a folder of installed packages; by default that of this interpreter.
        wheel: one that was built before.
        seed: of the order; by default another each time.
    """
    if os.geteuid():
        raise ValueError(
            "conditions: only root may take a network away and become another user; start it as "
            "root"
        )
    packages = packages or Path(sysconfig.get_path("purelib"))
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    counts, failed = Counter[str](), []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(_NOBODY_MAY_ENTER)
        clone = place / "a path with spaces" / "lp kernels"
        _call("git", "clone", "--quiet", ROOT, clone)
        wheel = wheel or _build(clone, place)
        python, installed = _environment(place, wheel, packages)
        for title, beside, arguments in passes:
            _prepare(clone, installed if beside else None)
            report = place / "home" / f"{title}.xml"
            _test(clone, python, [*arguments, f"--random-order-seed={seed}"], report)
            found, wrong = _outcomes(report)
            counts.update(found)
            failed += wrong
    assert not failed, f"with seed {seed} {len(failed)} tests failed:\n" + "\n".join(failed)
    return {**counts, "seed": seed, "wheel": wheel.name}


def _call(*command: object, **options: Any) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


def _build(clone: Path, place: Path) -> Path:
    """Builds the wheel, without kernels for GPUs unless LPKERNELS_CUDA asks for them."""
    asked = {**os.environ, "LPKERNELS_CUDA": os.environ.get("LPKERNELS_CUDA", "0")}
    wheels = place / "wheels"
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels]
    _call(sys.executable, "-m", "pip", "wheel", *options, clone, env=asked)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _environment(place: Path, wheel: Path, packages: Path) -> tuple[Path, Path]:
    """The interpreter of a new environment, and the package in it."""
    base = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
    _call(base, "-m", "venv", "--without-pip", place / "environment")
    python = place / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    _call(*pip, "--no-index", "--no-deps", wheel)
    (own,) = (place / "environment" / "lib").glob("python*/site-packages")
    # A .pth file adds a folder to the path, but no .pth file in that folder is read: an editable
    # install in `packages` cannot come first.
    (own / "beside.pth").write_text(f"{packages}\n")
    return python, own / "lpkernels"


def _prepare(clone: Path, sources: Path | None) -> None:
    """Leaves the clone as it is but for the package, and makes it read-only.

    sources: the installed package, which takes the place of the clone's.
    """
    package = clone / "lpkernels"
    if package.is_symlink():
        package.unlink()
    elif package.exists():
        shutil.rmtree(package)
    shutil.rmtree(clone / "build", ignore_errors=True)
    if sources:
        package.symlink_to(sources)
    _call("chmod", "-R", "a-w", clone)


def _test(clone: Path, python: Path, arguments: Sequence[str], report: Path) -> None:
    """Runs pytest as nobody, without a network."""
    home, shelf = report.parent, report.parent.parent / "shelf"
    home.mkdir(exist_ok=True)
    shutil.chown(home, "nobody", "nogroup")
    shelf.mkdir(exist_ok=True)
    interpreter = Path(sys.base_prefix)
    closed = [folder for folder in interpreter.parents if not folder.stat().st_mode & 0o001]
    settings = {
        "HOME": home, "TMPDIR": home, "PATH": f"{python.parent}:/usr/bin:/bin:/usr/sbin:/sbin",
        "OMP_NUM_THREADS": "1", "INTERPRETER": interpreter, "SHELF": shelf,
        "CLOSED": closed[-1] if closed else "",
    }  # fmt: skip
    order = ["-p", "random_order", "--random-order"]
    tests = [python, "-m", "pytest", "-q", "-n", "2", *order, *arguments, f"--junitxml={report}"]
    command = ["unshare", "--net", "--mount", "sh", "-c", _CONFINED, "sh", *tests]
    done = subprocess.run(
        list(map(str, command)), cwd=clone, env={k: str(v) for k, v in settings.items()},
        capture_output=True, text=True,
    )  # fmt: skip
    assert report.exists(), f"pytest made no report:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


def _outcomes(report: Path) -> tuple[Counter[str], list[str]]:
    """How many tests had which outcome, and the failures in words."""
    counts, failed = Counter[str](), []
    for case in ElementTree.parse(report).iter("testcase"):
        (outcome, *_) = [each.tag for each in case if each.tag in _OUTCOMES] or ["passed"]
        counts[_OUTCOMES.get(outcome, outcome)] += 1
        failed += [
            f"{case.get('classname')}::{case.get('name')}\n{(each.text or '')[-2000:]}"
            for each in case
            if each.tag in ("failure", "error")
        ]
    return counts, failed


_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
