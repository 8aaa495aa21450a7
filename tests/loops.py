"""Lists of cases that cost milliseconds each: one test that goes through them all.

pytest spends a millisecond or two on every test it collects and runs. `each` stands where
``pytest.mark.parametrize`` would, and what fails names the case.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str, *cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Calls the test once with every case, in order, and ends at the first that fails.

    names: the test's argument, or several with commas between them. All other arguments are
        fixtures, which the cases share.
    cases: a list, of tuples if there are several names; or a list for each name, whose
        combinations are the cases.

    A case that skips is left out. The test skips, with the reason of the last one, if all do.
    """
    arguments = [name.strip() for name in names.split(",")]
    listed = list(cases[0] if len(cases) == 1 else itertools.product(*cases))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            skipped = []
            for case in listed:
                values = (case,) if len(arguments) == 1 else case
                try:
                    test(**dict(zip(arguments, values, strict=True)), **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except BaseException as error:
                    if hasattr(error, "add_note"):  # Python 3.11 and later
                        error.add_note(f"case: {names} = {case}")
                    raise
            if listed and len(skipped) == len(listed):
                raise skipped[-1]

        kept = [p for name, p in signature.parameters.items() if name not in arguments]
        # This is what pytest reads to learn which fixtures the test takes.
        loop.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return loop

    return decorate


def rows(names: str, *cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `each`, of cases that are written where the test is."""
    return each(names, cases)
