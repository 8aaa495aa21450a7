"""The state of a technique's object: saved as plain values, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = ["Stateful"]


class Stateful:
    """An object with `state_dict` and `load_state_dict`, which a subclass has by naming attributes.

    `plain` takes the values of the named attributes. The state has their names without a leading
    underscore.
    """

    #: Attributes that the constructor sets and a state must share: a state with other values is
    #: refused.
    _settings: ClassVar[tuple[str, ...]] = ()
    #: Attributes that steps change.
    _progress: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """The type, the settings and the progress as plain values, which JSON holds."""
        names = (*self._settings, *self._progress)
        return {"type": type(self).__name__, **{_key(n): plain(getattr(self, n)) for n in names}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was saved.

        Raises:
            TypeError: no mapping.
            ValueError: the state of another type or of other settings, a value that is missing,
                unknown or of another kind; the message names it. Nothing changes then.
        """
        progress = self._progress_of(state)
        before = {name: getattr(self, name) for name in self._progress}
        try:
            self._go_on(progress)
        except BaseException:
            self._go_on(before)
            raise

    def _resume(self) -> None:
        """Does what follows from new progress, such as to set bits again. An error here refuses the
        state: the old progress is set back, and this method is called again."""

    def _go_on(self, progress: Mapping[str, Any]) -> None:
        for name, value in progress.items():
            setattr(self, name, value)
        self._resume()

    def _progress_of(self, state: Any) -> dict[str, Any]:
        """The progress of a state that fits, by the names of the attributes."""
        label = "load_state_dict"
        if not isinstance(state, Mapping):
            raise TypeError(f"{label}: expected a dict, got {type(state).__name__}")
        expected = self.state_dict()
        kind = expected["type"]
        if state.get("type") != kind:
            raise ValueError(
                f"{label}: type: expected the state of a {kind}, got {state.get('type')!r}"
            )
        missing, unknown = expected.keys() - state.keys(), state.keys() - expected.keys()
        if missing or unknown:
            fault, names = ("without", missing) if missing else ("with unknown", unknown)
            raise ValueError(
                f"{label}: expected the state of a {kind}, got one {fault} "
                f"{', '.join(sorted(map(str, names)))}"
            )
        values = {name: plain(state[_key(name)]) for name in (*self._settings, *self._progress)}
        for name, value in values.items():
            example = expected[_key(name)]
            if name in self._settings and value != example:
                raise ValueError(
                    f"{label}: {_key(name)}: expected {example}, got {state[_key(name)]}; make the "
                    f"{kind} as the saved one was"
                )
            if name in self._progress and not _is_of_kind(value, example):
                raise ValueError(
                    f"{label}: {_key(name)}: expected a value such as {example!r}, got {value!r}"
                )
        return {name: values[name] for name in self._progress}


def _key(name: str) -> str:
    return name.lstrip("_")


def plain(value: Any) -> Any:
    """A value as JSON holds it: arrays, tensors and tuples become lists, functions their names, and
    descriptions such as formats their texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value):
        return f"function {getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)


def _is_of_kind(value: Any, example: Any) -> bool:
    """Whether a plain value has the type of an example; a whole number may stand for a float, and
    anything for None."""
    if isinstance(example, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return example is None or type(value) is type(example)
