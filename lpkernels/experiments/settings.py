"""Settings as pydantic models: one declaration gives type, range, text, JSON and option."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Settings", "checked"]


class Settings(BaseModel):
    """A table of settings, checked when it is made; it never changes and can be hashed.

    A field is declared with its default, its range and its description, which is the help of its
    option: `epochs: int = Field(10, ge=1, description="Passes over the training examples.")`. Whole
    numbers become floats where the field is a float, so that equal settings have equal texts.

    Raises:
        TypeError: a value of another type; the message names the field.
        ValueError: a value that its field refuses, or a name that is no field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    #: A field, then the fields that mean nothing, and are refused, while it has its default.
    DEPENDENT: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _one_sentence(error, type(self)) from None

    @model_validator(mode="after")
    def _check_dependent(self) -> "Self":
        changed = self.model_dump(exclude_defaults=True)
        owner, *others = self.DEPENDENT or ("",)
        idle = [name for name in others if name in changed]
        if idle and owner not in changed:
            raise ValueError(f"{', '.join(idle)}: belongs to {owner}; give {owner} too")
        return self

    def replace(self, **changes: Any) -> "Self":
        """These settings with other values of some fields; errors as in the constructor."""
        return type(self)(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, as JSON and checkpoints hold them."""
        return self.model_dump(mode="json")


@dataclass(frozen=True)
class Option:
    """The name of a field's option, where it is not the field's own; "": it has none."""

    name: str


def option_of(name: str, field: FieldInfo) -> str:
    """The option of the field called `name`, as --weight-decay; "" where it has none."""
    names = [option.name for option in field.metadata if isinstance(option, Option)]
    return names[0] if names else f"--{name.replace('_', '-')}"


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """A validator of a field's type, as in Annotated[str, checked(as_quantizer)].

    Args:
        check: raises ValueError or TypeError for a value that is not allowed; "" and None are.
    """

    def validate(value: Any) -> Any:
        if value not in ("", None):
            try:
                check(value)
            except TypeError as error:
                raise ValueError(str(error)) from error
        return value

    return AfterValidator(validate)


def unknown_field(where: str, name: str, fields: list[str]) -> ValueError:
    """The error for a name that is none of the fields of `where`."""
    names = nearest(name, fields, "`lpkernels train --help` lists all")
    return ValueError(f"{where}: unknown field {name}; expected one of {names}")


def _one_sentence(error: ValidationError, settings: type[Settings]) -> Exception:
    """The first of pydantic's errors, with the name of its field first."""
    first = error.errors()[0]
    where, name = settings.__name__, ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return unknown_field(where, name, list(settings.model_fields))
    if "error" in first.get("ctx", {}):
        # The message of a check of ours names the value.
        return ValueError(": ".join(filter(None, [where, name, str(first["ctx"]["error"])])))
    kind = TypeError if first["type"].endswith("_type") else ValueError
    text = first["msg"].replace("Input should be", "expected")
    return kind(f"{where}: {name}: {text}, got {first['input']!r}")
