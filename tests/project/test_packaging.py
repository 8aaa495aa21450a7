"""The package built from this repository: the description, the version, the commit, the sources."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lpkernels
from lpkernels import _build
from lpkernels.experiments.measuring.machine import environment

setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.org/lpkernels"


PAGE, RAW = f"{REPOSITORY}/blob/main", f"{REPOSITORY}/raw/main"


@pytest.mark.parametrize("text, shown", [
    ("[x](docs/x.md#y)", f"[x]({PAGE}/docs/x.md#y)"),
    ("![x](docs/x.svg)", f"![x]({RAW}/docs/x.svg)"),
    ('<a href="x.md"><img src="x.png"></a>',
     f'<a href="{PAGE}/x.md"><img src="{RAW}/x.png"></a>'),
    ("[![x](x.svg)](x.md)", f"[![x]({RAW}/x.svg)]({PAGE}/x.md)"),
    ("[`x`](x.md)", f"[`x`]({PAGE}/x.md)"),
    ("[x](#y) [z](https://z.org/)", "[x](#y) [z](https://z.org/)"),
    ("`models[0](x)`\n\n```python\nmodels[0](x)\n```\n", None),
])  # fmt: skip
def test_the_description_leads_to_the_repository(setup, monkeypatch, tmp_path, text, shown):
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "pyproject.toml").write_text(f'Repository = "{REPOSITORY}"\n')
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    assert setup.description() == (shown or text)


def test_the_readmes_links_are_absolute_and_the_version_stands_in_pyproject(setup):
    places = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", setup.description(), flags=re.S))
    assert len(places) > 10
    assert [place for place in places if not place.startswith("https://")] == []
    stated = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert [lpkernels.__version__] == stated
    assert environment("cpu")["versions"]["lpkernels"] == lpkernels.__version__
    sources = [ROOT / "setup.py", *(ROOT / "lpkernels").rglob("*.py")]
    # The names of a sweep's cells keep the number of the first version.
    others = [path for path in sources if path.name != "cells.py"]
    assert [path for path in others if f'"{stated[0]}"' in path.read_text()] == []


def test_a_missing_compiler_is_an_error_where_kernels_are_required(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "missing", lambda: "no C++ compiler was found")
    monkeypatch.setenv("LPKERNELS_REQUIRE", "1")
    build = setup.CMakeBuild(setuptools.Distribution())
    build.inplace, build.build_lib = False, str(tmp_path)
    message = r"^LPKERNELS_REQUIRE=1 asks for the C\+\+ module, but no C"
    with pytest.raises(SystemExit, match=message):
        build.run()
    assert [*tmp_path.iterdir()] == []
    monkeypatch.delenv("LPKERNELS_REQUIRE")
    build.run()
    info = json.loads((tmp_path / "lpkernels" / _build.INFO).read_text())
    assert (info["extension"], info["reason"]) == (False, "no C++ compiler was found")
    assert info["commit"] == _build.commit()


def test_a_source_distribution_carries_the_commit(setup, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lpkernels").mkdir()
    (tmp_path / "lpkernels" / "__init__.py").touch()
    monkeypatch.setitem(setup.BUILD, "commit", lambda: "0123abc")
    sources = setup.SourcesWithCommit(setuptools.Distribution({"name": "lpkernels"}))
    sources.make_release_tree("unpacked", ["lpkernels/__init__.py"])
    info = json.loads((tmp_path / "unpacked" / "lpkernels" / _build.INFO).read_text())
    assert info == {"commit": "0123abc"}


@pytest.mark.parametrize("beside", [None, '[project]\nname = "other"\nversion = "7.0"\n'])
def test_the_version_of_an_installed_package_is_that_of_its_metadata(monkeypatch, tmp_path, beside):
    if beside:
        (tmp_path / "pyproject.toml").write_text(beside)
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path / "lpkernels")
    monkeypatch.setattr(_build.importlib.metadata, "version", {"lpkernels": "3.4"}.get)
    assert _build.version() == "3.4"


def test_the_commit_is_that_of_the_own_checkout_or_of_the_build(monkeypatch, tmp_path):
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    monkeypatch.setattr(_build, "_PACKAGE", package)
    assert _build.commit() is None
    (package / "file").write_text("1")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init"], ["add", "."], ["commit", "-m", "first"]):
        command = ["git", "-C", str(package.parent), *who, *arguments]
        subprocess.run(command, check=True, capture_output=True)
    clean = _build.commit()
    assert clean is not None and len(clean) == 40
    (package / "file").write_text("2")
    assert _build.commit() == clean + "+"
    inner = package / "site-packages" / "package"
    inner.mkdir(parents=True)
    monkeypatch.setattr(_build, "_PACKAGE", inner)
    assert _build.commit() is None
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path)
    (tmp_path / _build.INFO).write_text('{"commit": "0123abc"}')
    assert environment("cpu")["commit"] == "0123abc"


@pytest.mark.slow
def test_the_tests_of_the_project_pass_in_an_unpacked_source_distribution(tmp_path):
    made = ["egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run([sys.executable, "setup.py", "-q", *made], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    (bare,) = tmp_path.glob("lpkernels-*/")
    command = [sys.executable, "-m", "pytest", "-q", "tests/project"]
    own = {**os.environ, "PYTHONPATH": str(bare)}
    done = subprocess.run(command, cwd=bare, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
