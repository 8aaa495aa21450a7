"""``python -m bench.install``: the seconds of an install on a machine that has nothing yet.

Each part runs in a fresh clone of this commit, with an environment of its own and without pip's
cache, ``--times`` times. A line tells the seconds that passed, the processor's seconds of all its
processes, the objects that were compiled, with the sum of their seconds in the compiler, and the
megabytes of the module. The parts:

    demo    make demo
    readme  what README.md says to type: pip install --no-compile torch, then '.[lab]'
    pip     the same without --no-compile: pip makes byte code of all modules of all packages
    test    make test, and with --without-nvcc as if nvcc were not installed

Records are appended to bench/results/install.jsonl. Other work on the machine takes its share of
the processors: measure on an idle one.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recording import keep
from lpkernels import schemas

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "install.jsonl"
VENV, PIP = "python3 -m venv .venv", ".venv/bin/python -m pip install"
QUICK = f"{PIP} --no-compile"
PARTS = {
    "demo": "make demo",
    "readme": f"{VENV} && {QUICK} -c constraints.txt torch && {QUICK} '.[lab]'",
    "pip": f"{VENV} && {PIP} -c constraints.txt torch && {PIP} '.[lab]'",
    "test": "make test",
}


def measured(part: str, clone: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Runs a part in a clone. Raises: SystemExit, with the end of what the part printed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (clone / "log").open("w") as log:
        done = subprocess.run(
            PARTS[part], shell=True, cwd=clone, env=environment, stdout=log, stderr=log
        )
    if done.returncode:
        raise SystemExit(f"{(clone / 'log').read_text()[-8000:]}{part} ends with {done.returncode}")
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    objects = {
        name: (int(end) - int(start)) / 1000
        for path in clone.glob("build/*/.ninja_log")
        for start, end, _, name, _ in map(str.split, path.read_text().splitlines()[1:])
        if name.endswith(".o")
    }
    module = next(clone.glob("**/_C*.so"), None)
    return {
        "part": part,
        "seconds": round(seconds, 1),
        "processor_seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
        "objects": len(objects),
        "object_seconds": round(sum(objects.values()), 1),
        "module_mb": round(module.stat().st_size / 1e6, 2) if module else None,
        "processors": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--parts", nargs="*", default=["demo", "readme"], choices=list(PARTS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--without-nvcc", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LPKERNELS_")}
    environment |= {"PIP_NO_CACHE_DIR": "1"}
    if asked.without_nvcc:
        places = os.environ["PATH"].split(os.pathsep)
        environment["PATH"] = os.pathsep.join(p for p in places if not shutil.which("nvcc", path=p))
    nvcc = shutil.which("nvcc", path=environment["PATH"]) is not None
    for part in asked.parts * asked.times:
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "lpkernels"
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
            record = {**schemas.line("install"), **measured(part, clone, environment), "nvcc": nvcc}
        keep(asked.out, record)
        print(
            "{part}: {seconds} s, {processor_seconds} s of processors, {objects} objects of "
            "{object_seconds} s, a module of {module_mb} MB".format(**record),
            flush=True,
        )


if __name__ == "__main__":
    main()
