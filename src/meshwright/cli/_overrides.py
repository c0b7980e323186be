"""Settings, which are texts, converted to the type of what they set.

A setting is looked up first among the parameters of the function that makes the experiment, then, by
dotted path, among the fields of the experiment that it returns.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from meshwright.base import _internal as base
from meshwright.cli._settings import place_of
from meshwright.errors import OverrideError, UsageError, nearest

Overrides = Mapping[str, str]


def build(function: Callable[..., Any], settings: Overrides, kind: type, flags: Collection[str] = ()) -> Any:
    """Call `function` with the settings that are its parameters, set the rest on the result, and return it.

    An unknown setting may be a slip of one of the `flags`, which are the options of the command.
    All settings of one dataclass are set at once, so that its checks never see a half-changed state.
    """
    nested, hints = _nested(settings), get_type_hints(function)
    parameters = inspect.signature(function).parameters
    _check_names(settings, parameters, kind, flags)
    _check_complete(nested, parameters)
    own = {
        name: _changed(p.default, name, hints.get(name, _type_of_default(p)), nested[name])
        for name, p in parameters.items()
        if name in nested
    }
    experiment = function(**own)
    if not isinstance(experiment, kind):
        raise UsageError(
            f"{function.__module__}:{function.__qualname__} returned {type(experiment).__name__}, "
            f"not {kind.__name__}.\n  The function given here must return an mw.Experiment."
        )
    rest = {name: new for name, new in nested.items() if name not in parameters}
    return _replaced(experiment, "", rest) if rest else experiment


def with_secrets(function: Callable[..., Any], settings: Overrides) -> dict[str, Any]:
    """Return the settings, with each for a parameter of type `pydantic.SecretStr` wrapped in that type."""
    import pydantic

    secret = {name for name, kind in get_type_hints(function).items() if kind is pydantic.SecretStr}
    return {name: pydantic.SecretStr(text) if name in secret else text for name, text in settings.items()}


def defaults_of(function: Callable[..., Any], settings: Overrides) -> dict[str, str]:
    """Return the values of the parameters that are not among the settings, as a user would type them.

    Only numbers, texts and None are returned: other values have no text that says the same.
    """
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    plain = (str, int, float, type(None))
    return {name: str(x) for name, x in defaults.items() if name not in settings and isinstance(x, plain)}


def convert(name: str, text: str, kind: Any) -> Any:
    """Convert `text` to the type `wanted`, reading it as none, as text, as YAML or as a comma-separated
    list.
    """
    import pydantic
    import yaml

    if (owner := _dataclass_in(kind)) and text.lower() not in _NONE:
        parts = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(owner))
        raise OverrideError(f"{name} is a group of settings: set one of {parts}.{place_of(text)}")
    try:
        adapter = pydantic.TypeAdapter(kind)
    except pydantic.errors.PydanticUserError:
        raise OverrideError(
            f"{name} cannot be set from text: its type is {kind}. Set it in the function that makes the "
            f"experiment.{place_of(text)}"
        ) from None
    for reading in (
        lambda: _NONE[text.lower()],
        lambda: text,
        lambda: yaml.safe_load(text),
        lambda: text.split(","),
        lambda: float(text),  # such as 1e6, which pydantic then turns into an int
    ):
        try:
            return adapter.validate_python(reading())
        except (ValueError, yaml.YAMLError, KeyError, RecursionError):
            continue
    raise OverrideError(f"{name}={text}: expected {base.spelled(kind)}, found {text!r}.{place_of(text)}")


_NONE = {"none": None}


def _nested(settings: Overrides) -> dict[str, Any]:
    """Return `{"input": {"batch_size": "8"}}` for `{"input.batch_size": "8"}`."""
    nested: dict[str, Any] = {}
    for name, text in settings.items():
        *above, last = name.split(".")
        inner = nested
        for part in above:
            inner = inner.setdefault(part, {})
            if isinstance(inner, str):
                raise OverrideError(f"both {part} and {name} are set. Remove one of them.")
        if last in inner:
            raise OverrideError(f"both {name} and a part of it are set. Remove one of them.")
        inner[last] = text
    return nested


def _check_names(
    settings: Overrides, parameters: Iterable[str], kind: type, flags: Collection[str] = ()
) -> None:
    names = list(dict.fromkeys([*parameters, *(f.name for f in dataclasses.fields(kind))]))
    for name in settings:
        first = name.split(".")[0]
        if first not in names:
            raise _unknown(name, first, names, settings[name], kind, flags)


def _check_complete(nested: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if (
            parameter.kind in positional
            and parameter.default is inspect.Parameter.empty
            and name not in nested
        ):
            raise OverrideError(f"the function needs a value for {name!r}. Add {name}=VALUE.")


def _changed(value: Any, path: str, kind: Any, new: Any) -> Any:
    """Return the value of a text; or, given a mapping of settings, `value` with these parts changed."""
    return convert(path, new, kind) if isinstance(new, str) else _replaced(value, path, new)


def _replaced(owner: Any, path: str, nested: Mapping[str, Any]) -> Any:
    """Return a copy of `owner`, the dataclass or mapping at `path`, with some fields or values changed."""
    kinds = _types_in(owner)
    for name in nested:
        if name not in kinds:
            raise _unknown(f"{path}.{name}".lstrip("."), name, kinds, nested[name], type(owner))
    values = owner if isinstance(owner, Mapping) else {name: getattr(owner, name) for name in nested}
    changes = {
        name: _changed(values[name], f"{path}.{name}".lstrip("."), kinds[name], new)
        for name, new in nested.items()
    }
    if isinstance(owner, Mapping):
        return {**owner, **changes}
    try:
        return dataclasses.replace(owner, **changes)
    except ValueError as error:
        texts = ", ".join(f"{path}.{name}={new}" for name, new in nested.items() if isinstance(new, str))
        message = f"{texts or path}: {error}" if path else str(error)
        raise UsageError(f"{message}{place_of(nested)}") from None


def _types_in(owner: Any) -> dict[str, Any]:
    """Return the names that can be set in a dataclass or mapping, with their types; {} for anything else."""
    if isinstance(owner, Mapping):
        return {name: type(value) for name, value in owner.items()}
    if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
        return {}
    hints = get_type_hints(type(owner))
    return {field.name: hints[field.name] for field in dataclasses.fields(owner) if field.init}


def _paths_in(kind: Any) -> list[str]:
    """Return the dotted paths of the settings inside groups of settings, such as `logging.every`."""
    inner = {name: _dataclass_in(hint) for name, hint in get_type_hints(kind).items()}
    return [f"{name}.{f.name}" for name, owner in inner.items() if owner for f in dataclasses.fields(owner)]


def _dataclass_in(kind: Any) -> Any:
    """Return the dataclass of settings in a type such as `Stop` or `Stop | None`; None if there is none."""
    kinds = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
    return next((part for part in kinds if getattr(part, "is_known_by_place", False)), None)


def _unknown(
    name: str, part: str, names: Collection[str], texts: Any, kind: type, flags: Collection[str] = ()
) -> OverrideError:
    """Return the error for an unknown setting of a kind, with the setting or option that was meant."""
    options = {flag[2:].replace("-", "_"): flag for flag in flags if flag.startswith("--")}
    paths = _paths_in(kind) if dataclasses.is_dataclass(kind) else ()
    spelling = {each: each for each in (*names, *paths)} | ({} if "." in name else options)
    hint = ""
    if close := (same := base.synonym(part, spelling)) or nearest(part, spelling):
        hint = f" Did you mean {spelling[close]!r}?"
    if not same and (text := base.instead(kind.__name__, part)):
        hint = f" In Python: {text}"
    there = f"Settings: {', '.join(names)}." if names else f"{name.rpartition('.')[0]} has no settings."
    return OverrideError(f"unknown setting {name!r}.{hint}\n  {there}{place_of(texts)}")


def _type_of_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    return Any if default in (None, inspect.Parameter.empty) else type(default)
