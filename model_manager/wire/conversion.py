"""Plain values (of flags, rows, notebooks) → frozen settings; what does not fit is told in one sentence.

The sentence names the setting, what it got and what it takes. Knows no particular setting.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect as types

from .decoding import convert
from .errors import ConfigError, MillraceError

_Settings = TypeVar("_Settings", bound=msgspec.Struct)
_ALIKE = 0.8
_SHOWN = 80
_LONGEST_NAME = 200
"""Characters of a name that may be a known one misspelt: comparing takes their number times the number in all names."""
_NAMES: dict[type[types.Type], tuple[str, str]] = {
    types.IntType: ("an integer", "integers"),
    types.FloatType: ("a number", "numbers"),
    types.StrType: ("a string", "strings"),
    types.BoolType: ("true or false", "booleans"),
    types.DateType: ("a date", "dates"),
    types.AnyType: ("a value", "values"),
}


class SettingsMeta(msgspec.StructMeta):
    """Settings whose constructor says which name was meant, where msgspec's says only that one is unknown, and which
    may take a field in another type than its own.
    """

    def __call__(self, *given: Any, **fields: Any) -> Any:
        names: tuple[str, ...] = self.__struct_fields__
        if given:
            shape = f"{self.__name__}({names[0]}={shown(given[0])})"
            raise TypeError(f"{self.__name__} takes its settings by name: write {shape}")
        if strange := [name for name in fields if name not in names]:
            what = f"setting of {self.__name__}"
            raise TypeError(unknown(strange[0], names, what=what, near=self._nearest))
        return super().__call__(**self._fitted(fields))

    def _fitted(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields in the class's own types; constructors of structs neither check nor convert any."""
        return fields

    def _nearest(self, name: str) -> str | None:
        """The setting that was probably meant; a class may know more."""
        return nearest(name, self.__struct_fields__)


def converted(
    fields: Mapping[str, Any],
    settings: type[_Settings],
    error: type[MillraceError],
    *,
    what: str,
    near: Callable[[str], str | None] | None = None,
) -> _Settings:
    """The settings of these fields, or `error`; `what` a field is called, and `near` finds the name that was meant."""
    if strange := fields.keys() - _names(settings):
        name = next(name for name in fields if name in strange)
        raise error(unknown(name, settings.__struct_fields__, what=what, near=near))
    try:
        plain = {str.__str__(name): value for name, value in fields.items()}  # msgspec takes no subclass of str
        return convert(plain, settings, str_keys=True)
    except msgspec.ValidationError as failure:
        for name, kind in _required(settings).items():
            if name not in fields:
                raise error(f"{name} is missing: takes {_described(types.type_info(kind))}") from None
        raise _own_error(failure, fields, settings, error) from None


def check_types(settings: msgspec.Struct, error: type[MillraceError]) -> None:
    """Raises `error`, which names the field, for a value of another type: constructors of structs check none."""
    fitted({name: getattr(settings, name) for name in settings.__struct_fields__}, type(settings), error)


def fitted(fields: Mapping[str, Any], settings: type[msgspec.Struct], error: type[MillraceError]) -> dict[str, Any]:
    """The fields in the types that they have in `settings`: a struct made of an object, a tuple of a list. Raises
    `error`, which names the field, for a value that cannot be of its type.
    """
    hints = _hints(settings)
    try:
        return {name: convert(value, hints[name], str_keys=True) for name, value in fields.items()}
    except msgspec.ValidationError as failure:
        raise _own_error(failure, fields, settings, error) from None


@cache
def _hints(settings: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)  # a length may be what a value does not fit


@cache
def _names(settings: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(settings.__struct_fields__)


@cache
def _required(settings: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields without a default, and their types; finding them takes longer than all the rest of reading a row."""
    return {field.name: field.type for field in msgspec.structs.fields(settings) if field.required}


def nearest(name: str, known: Collection[str], *, alike: float = _ALIKE) -> str | None:
    """The known name that was probably meant: capitals and hyphens aside, or with a letter or two wrong.

    `alike` is the least similarity of the two, 0 to 1.
    """
    if len(name) > _LONGEST_NAME:
        return None
    plain = {each.lower().replace("-", "_"): each for each in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=alike)
    return plain[found[0]] if found else None


def did_you_mean(meant: str | None, otherwise: str = "") -> str:
    """How an error ends: with the name that was probably meant, else with what to do otherwise, else with nothing."""
    told = f"did you mean {meant}?" if meant else otherwise
    return f": {told}" if told else ""


def unknown(
    name: object,
    known: Collection[str],
    *,
    what: str,
    near: Callable[[str], str | None] | None = None,
    most: int | None = None,
) -> str:
    """What is said of a name that is not known. It lists at most so many known names; the others as for `converted`."""
    meant = (near or (lambda text: nearest(text, known)))(name) if isinstance(name, str) else None
    some = list(known)[:most]
    more = f" and {len(known) - len(some)} more" if len(some) < len(known) else ""
    takes = f"takes {', '.join(some)}{more}"
    return f"unknown {what} {shown(name)}{did_you_mean(meant, takes)}"


def _own_error(
    failure: msgspec.ValidationError,
    fields: Mapping[str, Any],
    settings: type[msgspec.Struct],
    error: type[MillraceError],
) -> MillraceError:
    """What a struct said itself, else a sentence that names the field, its value and what it takes."""
    if isinstance(failure.__cause__, error):
        return failure.__cause__
    return error(_misfit(fields, settings) or str(failure))


def _misfit(fields: Mapping[str, Any], settings: type[msgspec.Struct]) -> str | None:
    hints = _hints(settings)
    name = next((name for name, value in fields.items() if not _fits(value, hints[name])), None)
    if name is None:
        return None
    return f"{name}={shown(fields[name])}: takes {_described(types.type_info(hints[name]))}"


def _fits(value: Any, hint: Any) -> bool:
    try:
        convert(value, hint, str_keys=True)
    except msgspec.ValidationError:
        return False
    return True


def _described(kind: types.Type) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_described(each) for each in kind.types if not isinstance(each, types.NoneType))
    if isinstance(kind, types.LiteralType):
        return f"one of {', '.join(map(str, kind.values))}" if len(kind.values) > 1 else repr(kind.values[0])
    if isinstance(kind, types.VarTupleType | types.ListType):
        return f"a list of {_NAMES[type(kind.item_type)][1]}"
    if isinstance(kind, types.StructType):
        return f"an object with {', '.join(field.name for field in kind.fields)}"
    if isinstance(kind, types.DictType):
        values = kind.value_type
        members = values.types if isinstance(values, types.UnionType) else (values,)
        named = " or ".join(_NAMES[type(each)][1] for each in members)
        return f"an object with {_NAMES[type(kind.key_type)][1]} as names and {named} as values"
    return _NAMES[type(kind)][0]


def shown(value: Any) -> str:
    """A value as errors give it, however large or deep it is. Whole numbers have no `.0`, as they are typed."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = repr(_beginning(value, _SHOWN))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def check(name: str, got: object, holds: bool, takes: str) -> None:
    """Raises ConfigError unless the setting's value holds: with its name, what it got and what it takes."""
    if not holds:
        raise ConfigError(f"{name}={shown(got)}: takes {takes}")


def _beginning(value: Any, most: int) -> Any:
    """A value whose repr begins like the whole one's: each part and each level of it takes a character."""
    if isinstance(value, str | bytes):
        return value[:_SHOWN]
    if isinstance(value, Mapping):
        return {name: _beginning(value[name], most - 1) for name in islice(value, most)} if most > 0 else {}
    if isinstance(value, list | tuple):
        parts = [_beginning(each, most - 1) for each in value[: max(most, 0)]]
        return parts if isinstance(value, list) else (*parts,)
    return value
