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
        """Continues from the saved state.

        Raises:
            TypeError: no mapping.
            ValueError: the state of another type or of other settings, a value that is missing,
                unknown or of another kind; the message names it. Nothing changes then.
        """
        self._check_state(state)
        before = {name: getattr(self, name) for name in self._progress}
        try:
            self._go_on({name: plain(state[_key(name)]) for name in self._progress})
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

    def _check_state(self, state: Any) -> None:
        """Raises TypeError or ValueError for a state that does not fit this object."""
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: expected a dict, got {type(state).__name__}")
        own, progress = self.state_dict(), set(map(_key, self._progress))
        for key in {**own, **state}:
            example, value = own.get(key, "nothing"), plain(state.get(key, "nothing"))
            fits = _is_of_kind(value, example) if key in progress else value == example
            if key not in own or key not in state or not fits:
                kind = "a value such as " if key in progress else ""
                raise ValueError(
                    f"load_state_dict: {key}: expected {kind}{example!r}, got {value!r}; load the "
                    f"state of a {own['type']} that was made as this one"
                )


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
