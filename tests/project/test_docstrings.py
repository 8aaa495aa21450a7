"""Public names: docstrings name every parameter, their examples run, pages use no other names."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import lpkernels as lp

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
#: Below ``lpkernels``: the modules whose ``__all__`` users may rely on. Every other module is the
#: package's own, and may change without a word, whatever its ``__all__`` says.
PUBLIC = """
arithmetic backends formats functional nn nn.observing nn.policies recipes
techniques techniques.accumulation techniques.assignment techniques.cpt techniques.loss_scaling
techniques.pareto techniques.state experiments experiments.settings
experiments.sweeps.specification experiments.sweeps.statistics experiments.sweeps.sweep
experiments.training.config experiments.training.callback experiments.training.trainer
experiments.workloads.bundled experiments.workloads.models
experiments.workloads.models.transformer experiments.workloads.supervised
report.diagnosis report.html integrations.transformers
""".split()
MODULES = ("lpkernels", *(f"lpkernels.{name}" for name in PUBLIC))
# A docstring with this link and the words "as there" leaves torch's own parameters to torch.
LINK = re.compile(r"https://docs\.pytorch\.org/docs/stable/generated/torch\.([\w.]+)\.html")
IMPORT = re.compile(r"from (lpkernels[\w.]*) import (\([^)]*\)|[^\n;`]*)")
ATTRIBUTE = re.compile(r"\blp((?:\.[A-Za-z]\w*)+)")


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable under its first name; without the callables of an absent extra."""
    seen = set()
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("lpkernels"):
                raise
            continue
        for attribute in module.__all__:
            value = getattr(module, attribute)
            is_callable = inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))
            if is_callable and id(value) not in seen:
                yield f"{name}.{attribute}", value
            seen.add(id(value))


CALLABLES = dict(public())
EXAMPLES = {name: value for name, value in CALLABLES.items() if ">>> " in (value.__doc__ or "")}


def torch_parameters(link: str) -> set[str]:
    """The parameters of torch's function or class, from its signature or its docstring."""
    function = reduce(getattr, link.split("."), torch)
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:
        head = (function.__doc__ or "").strip().partition(")")[0].partition("(")[2]
        return {part.split("=")[0].strip() for part in head.split(",")}


def unnamed_parameters(value: Any) -> list[str]:
    """The parameters that a callable's docstring, of a class with its ``__init__``, does not name;
    a text that dataclasses make themselves is no docstring. A setting has a description."""
    texts = [part.__doc__ or "" for part in (value, *([value.__init__] * inspect.isclass(value)))]
    doc = "\n".join(text for text in texts if not text.startswith(f"{value.__name__}("))
    links = LINK.findall(doc) if re.search(r"\bas\s+there\b", doc) else []
    explained = {"self", *(name for link in links for name in torch_parameters(link))}
    settings = getattr(value, "model_fields", {})
    explained |= {name for name, field in settings.items() if field.description}
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    names = [
        p.name for p in parameters if not (links and p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    ]
    return [n for n in names if n not in explained and not re.search(rf"\b{re.escape(n)}\b", doc)]


@pytest.mark.parametrize("name", CALLABLES)
def test_a_docstring_names_its_parameters(name: str) -> None:
    assert unnamed_parameters(CALLABLES[name]) == []


def example_failures(value: Any) -> str:
    """The report of the examples that print something else; "" if none does."""
    torch.manual_seed(0)
    torch.set_printoptions(profile="default")
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    names = {"lp": lp, "torch": torch}
    finder = doctest.DocTestFinder(recurse=False)
    for test in finder.find(value, value.__name__, module=False, globs=names):
        runner.run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_what_they_show(name: str) -> None:
    assert example_failures(EXAMPLES[name]) == ""


def private_names(page: str) -> list[str]:
    """The names that a page takes from modules which are not public or do not list them."""
    used = [
        (module, name.split(" as ")[0].strip())
        for module, names in IMPORT.findall(page)
        for name in names.strip("()").split(",")
        if name.strip()
    ]
    for path in ATTRIBUTE.findall(page):
        owner: object = lp
        for name in path[1:].split("."):
            if not isinstance(owner, ModuleType):
                break
            used.append((owner.__name__, name))
            owner = getattr(owner, name, None)
    return [
        f"{module}.{name}"
        for module, name in used
        if module not in MODULES or name not in pytest.importorskip(module).__all__
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_public_names_alone(page: Path) -> None:
    assert private_names(page.read_text()) == []
