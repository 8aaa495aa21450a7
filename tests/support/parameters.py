"""``python -m tests.support.parameters``: public callables with parameters that no docstring names.

A name is public if it stands in ``__all__`` of one of the modules in `PUBLIC`. Every other module
is the package's own (`lpkernels.ops`, `lpkernels.reference`, `lpkernels.functional.unchecked`), and
may change without a word, whatever its ``__all__`` says.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import reduce
from typing import Any

#: Below ``lpkernels``: the modules whose ``__all__`` users may rely on.
PUBLIC = """
arithmetic backends formats functional nn nn.observing nn.policies recipes
techniques techniques.accumulation techniques.assignment techniques.cpt techniques.loss_scaling
techniques.pareto techniques.state experiments experiments.settings
experiments.sweeps.specification experiments.sweeps.statistics experiments.sweeps.sweep
experiments.training.config experiments.training.callback experiments.training.trainer
experiments.workloads.bundled experiments.workloads.models
experiments.workloads.models.transformer experiments.workloads.supervised
report.diagnosis report.html report.schedules integrations.transformers
""".split()
MODULES = ("lpkernels", *(f"lpkernels.{name}" for name in PUBLIC))
# A docstring with this link and the words "as there" leaves torch's own parameters to torch.
LINK = re.compile(r"https://docs\.pytorch\.org/docs/stable/generated/torch\.([\w.]+)\.html")


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
            real = inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))
            if real and id(value) not in seen:
                yield f"{name}.{attribute}", value
            seen.add(id(value))


def torchs(link: str) -> set[str]:
    """The parameters of torch's function or class, from its signature or its docstring."""
    theirs = reduce(getattr, link.split("."), importlib.import_module("torch"))
    try:
        return set(inspect.signature(theirs).parameters)
    except ValueError:
        head = (theirs.__doc__ or "").strip().partition(")")[0].partition("(")[2]
        return {part.split("=")[0].strip() for part in head.split(",")}


def missing(value: Any) -> list[str]:
    """The parameters that a callable's own docstring, of a class with its ``__init__``, does not
    name; a text that dataclasses make themselves is none."""
    texts = (each.__doc__ or "" for each in (value, *([value.__init__] * inspect.isclass(value))))
    doc = "\n".join(text for text in texts if not text.startswith(f"{value.__name__}("))
    links = LINK.findall(doc) if re.search(r"\bas\s+there\b", doc) else []
    known = {"self", *(name for link in links for name in torchs(link))}
    # The settings of a model describe themselves.
    known |= {name for name, f in getattr(value, "model_fields", {}).items() if f.description}
    try:
        given = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    needed = [p.name for p in given if not (links and p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD))]
    return [n for n in needed if n not in known and not re.search(rf"\b{re.escape(n)}\b", doc)]


if __name__ == "__main__":
    found = [(name, missing(value)) for name, value in public()]
    lines = [f"{name}: {', '.join(names)}" for name, names in found if names]
    print(*lines, f"{len(found)} public callables, {len(found) - len(lines)} complete", sep="\n")
    sys.exit(bool(lines))
