"""What mkdocs and mkdocstrings do not know of these pages: links that leave docs/, fences with a
word for the tests, the reference, docstrings that tell of several parameters at once; and
tutorials, scripts in jupytext's percent format that are executed for their output."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import griffe
import jupytext
import tomllib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Where a link leads that leaves docs/: the file in the repository.
BLOB = f"{_PROJECT['urls']['Repository']}/blob/main/"
#: The public packages, a page each.
PACKAGES = (
    "lpkernels",
    *(f"lpkernels.{name}" for name in ("nn", "functional", "formats", "arithmetic")),
    *(
        f"lpkernels.techniques.{name}"
        for name in ("accumulation", "loss_scaling", "cpt", "assignment", "pareto")
    ),
)
# "Raises: ValueError: text.  TypeError: text", on one line or on several.
_RAISES = re.compile(r"^( *)Raises:(.*(?:\n\1 +.*)*)", re.MULTILINE)
_ERROR = re.compile(r"(?:^|(?<=[.\s]))\s*((?:\w+Error|Interrupted)(?:, \w+Error)*): ")
# Doctests up to a blank line.
_TESTS = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)
# "a, b: text" in a docstring, with the lines that go on below it.
_JOINT = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages of the reference stand in the last group."""
    assert config.nav is not None
    config.nav[-1]["Reference"] += [f"reference/{name}.md" for name in PACKAGES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference, a page for each public package, the tutorials, and the style sheet."""
    for name in PACKAGES:
        text = f"# {name}\n\n::: {name}\n    options: {{show_root_heading: false}}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        content = executed(script)
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=content))
    style = (ROOT / "site" / "style.css").read_text()
    files.append(File.generated(config, "style.css", content=style))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page as the site shows it; the tables of results have the room of the navigation."""
    if page.file.src_uri.startswith("results/"):
        page.meta["hide"] = ["navigation"]
    text = re.sub(r"^```python (no-run|needs \w+)$", "```python", markdown, flags=re.MULTILINE)
    text = re.sub(r"\]\(tutorials/(\w+)\.py\)", r"](tutorials/\1.md)", text)
    up = "../" * (page.file.src_uri.count("/") + 1)
    return text.replace(f"]({up}", f"]({BLOB}")


def executed(script: Path) -> str:
    """A tutorial as a page with its output, and a link to the script."""
    notebook = jupytext.read(script)
    ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(ROOT)}})
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    return f"{text}\n[The script]({script.name})\n"


def apart(docstring: str) -> str:
    """The docstring with a line for each parameter and error, where one line tells of several, and
    a title above its examples."""

    def parameters(found: re.Match[str]) -> str:
        space, names, text = found.groups()
        return "\n".join(f"{space}{name}: {text}" for name in names.split(", "))

    def errors(found: re.Match[str]) -> str:
        space, text = found.groups()
        before, *parts = _ERROR.split(" ".join(text.split()))
        if before or not parts:
            return found[0]
        lines = [
            f"{space}    {name}: {told.strip()}"
            for names, told in zip(parts[::2], parts[1::2], strict=True)
            for name in names.split(", ")
        ]
        return "\n".join(["", f"{space}Raises:", *lines])

    def examples(found: re.Match[str]) -> str:
        lines = (f"    {line}" for line in found[0].splitlines())
        return "\n".join([f"{found[1]}Examples:", *lines])

    return _JOINT.sub(parameters, _RAISES.sub(errors, _TESTS.sub(examples, docstring)))


class Docstrings(griffe.Extension):
    """Takes docstrings apart, and takes the ones that a decorator writes from the class itself."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        if obj.is_class and any("like_torch" in str(each.value) for each in obj.decorators):
            assert obj.parent is not None
            made = getattr(importlib.import_module(obj.parent.path), obj.name)
            obj.docstring.value = inspect.getdoc(made) or ""
        obj.docstring.value = apart(obj.docstring.value)
