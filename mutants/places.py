"""The places of a source where a mutation changes behaviour, and a sample of their mutants.

The mutations are cosmic-ray's: operators exchanged, numbers moved by one, conditions negated,
decorators removed, loops emptied. These are left out, because no behaviour can show them or they
say little of the tests:

- mutations in annotations, in code that only a type checker reads, and in `raise` statements,
  because their text may vary;
- mutations of the star before keyword parameters, which cosmic-ray takes for a product;
- `is` in the place of `==` and the like: they differ only as the interpreter shares its objects;
- random numbers in the place of variables: cosmic-ray must be told these variables by name.

A place is a position with all its mutations; it counts once, whether it has two mutants or eleven.
Places are taken in the order of a hash of their line, so that an edit elsewhere leaves the sample
as it is. Of each place the mutant with the least hash is taken.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

_PROVIDER = OperatorProvider()
_OPERATORS: dict[str, Any] = {
    name: _PROVIDER[name]() for name in _PROVIDER if not _PROVIDER[name].arguments()
}
_IDENTITY = ("Is", "IsNot")


@dataclass(frozen=True)
class Mutant:
    """One change of a file: lines before and after it, and the whole source after it.

    key: it is the same in every run, while the line stays.
    """

    key: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    source: str


def sample(sources: dict[str, str], size: int, seed: int) -> tuple[list[Mutant], int]:
    """A mutant of each of `size` places, or of all if they are fewer, and the number of places.

    sources: the text of each file.
    """
    places: dict[str, list[_Mutation]] = {}
    for file, source in sources.items():
        for mutation in _mutations(file, source):
            places.setdefault(mutation.place, []).append(mutation)
    chosen: list[Mutant] = []
    for place in sorted(places, key=lambda text: _digest(f"{seed}:{text}")):
        mutations = sorted(places[place], key=lambda m: _digest(f"{seed}:{m.name}"))
        made = (m.made(sources[m.file]) for m in mutations)
        chosen += [mutant for mutant in made if mutant is not None][:1]
        if len(chosen) == size:
            break
    return chosen, len(places)


@dataclass(frozen=True)
class _Mutation:
    """The `occurrence`-th mutation of a file by an operator; `place` and `name` hold no line
    number."""

    file: str
    line: int
    operator: str
    occurrence: int
    place: str
    name: str

    def made(self, source: str) -> Mutant | None:
        """The mutant; None where the change makes no valid Python, or changes nothing."""
        changed = mutate_code(source, _OPERATORS[self.operator], self.occurrence)
        if changed is None or changed == source:
            return None
        try:
            compile(changed, self.file, "exec")
        except SyntaxError:
            return None
        lines = list(difflib.ndiff(source.splitlines(), changed.splitlines()))
        before = "\n".join(line[2:].strip() for line in lines if line.startswith("- "))
        after = "\n".join(line[2:].strip() for line in lines if line.startswith("+ "))
        key = _digest(self.name)[:12]
        return Mutant(key, self.file, self.line, self.operator, before, after, changed)


def _mutations(file: str, source: str) -> Iterator[_Mutation]:
    lines = source.splitlines()
    occurrences: Counter[str] = Counter()
    here: Counter[str] = Counter()
    for node in ast_nodes(get_ast(source)):
        for operator, mutator in _OPERATORS.items():
            for (line, column), _ in mutator.mutation_positions(node):
                occurrence = occurrences[operator]
                occurrences[operator] += 1
                if _crosses_identity(operator) or _says_nothing(node):
                    continue
                text = lines[line - 1].strip()
                repeated = sum(other.strip() == text for other in lines[: line - 1])
                place = f"{file}:{text}:{repeated}:{column}"
                name = f"{place}:{operator}"
                here[name] += 1
                name = f"{name}:{here[name]}"
                yield _Mutation(file, line, operator, occurrence, place, name)


def _crosses_identity(operator: str) -> bool:
    kind, *ends = operator.split("_")
    one, other = (end in _IDENTITY for end in ends) if len(ends) == 2 else (False, False)
    return kind == "ReplaceComparisonOperator" and one != other


def _says_nothing(node: Any) -> bool:
    """Whether a node is in an annotation, in what a type checker reads, or in a `raise`, or is the
    star of a list of parameters."""
    while (parent := node.parent) is not None:
        if parent.type == "raise_stmt" or (parent.type == "parameters" and node.type == "operator"):
            return True
        if parent.type == "funcdef" and parent.annotation is node:
            return True
        if parent.type == "tfpdef" and parent.children[2] is node:
            return True
        if parent.type == "annassign" and parent.children[1] is node:
            return True
        if node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING":
            return True
        if node.type == "decorator" and node.children[1].get_code().strip() == "overload":
            return True
        node = parent
    return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
