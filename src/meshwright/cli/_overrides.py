"""Settings given on the command line, `key=value` or `--key value`, converted to the type of what they set.

A setting is looked up first among the parameters of the function that makes the experiment, then, by
dotted path, among the fields of the experiment that it returns.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from meshwright.base._internal import instead, spelled, synonym
from meshwright.cli._parser import FLAGS
from meshwright.cli._settings import place_of
from meshwright.errors import OverrideError, UsageError, nearest

Overrides = Mapping[str, str]


def split(arguments: Sequence[str], flags: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the settings from the other arguments; return those others, and the settings.

    Arguments after a bare `--` are left alone.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest, settings, waiting = [], {}, list(arguments[:end])
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("--") and name not in flags:
            if not equals and (not waiting or waiting[0].startswith("--")):
                raise _without_value(word, flags)
            settings[name[2:].replace("-", "_")] = value if equals else waiting.pop(0)
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            settings[name] = value
        else:
            rest.append(word)
    return rest + list(arguments[end:]), settings


def _without_value(word: str, flags: Iterable[str]) -> OverrideError:
    known = sorted(flag for flag in flags if flag.startswith("--"))
    close = nearest(word, known)
    hint = f"Did you mean the option {close}?" if close else f"Options of commands: {', '.join(known)}."
    return OverrideError(f"{word} is not an option; as a setting it needs a value: {word} VALUE.\n  {hint}")


def build(function: Callable[..., Any], settings: Overrides, kind: type) -> Any:
    """Call `function` with the settings that are its parameters, set the rest on the result, and return it.

    All settings of one dataclass are set at once, so that its checks never see a half-changed state.
    """
    asked, hints = _nested(settings), get_type_hints(function)
    parameters = inspect.signature(function).parameters
    _check_names(settings, parameters, kind)
    _check_complete(asked, parameters)
    own = {
        name: _changed(p.default, name, hints.get(name, _type_of_default(p)), asked[name])
        for name, p in parameters.items()
        if name in asked
    }
    made = function(**own)
    if not isinstance(made, kind):
        raise UsageError(
            f"{function.__module__}:{function.__qualname__} returned {type(made).__name__}, "
            f"not {kind.__name__}.\n  The function given here must return an mw.Experiment."
        )
    rest = {name: new for name, new in asked.items() if name not in parameters}
    return _replaced(made, "", rest) if rest else made


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


def convert(name: str, text: str, wanted: Any) -> Any:
    """Convert `text` to the type `wanted`, reading it as none, as text, as YAML or as a comma-separated
    list.
    """
    import pydantic
    import yaml

    if (owner := _dataclass_in(wanted)) and text.lower() not in _NONE:
        parts = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(owner))
        raise OverrideError(f"{name} is a group of settings: set one of {parts}.{place_of(text)}")
    try:
        adapter = pydantic.TypeAdapter(wanted)
    except pydantic.errors.PydanticUserError:
        raise OverrideError(
            f"{name} cannot be set from text: its type is {wanted}. Set it in the function that makes the "
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
    raise OverrideError(f"{name}={text}: expected {spelled(wanted)}, found {text!r}.{place_of(text)}")


_NONE = {"none": None}


def _nested(settings: Overrides) -> dict[str, Any]:
    """Return `{"input": {"batch_size": "8"}}` for `{"input.batch_size": "8"}`."""
    asked: dict[str, Any] = {}
    for name, text in settings.items():
        *above, last = name.split(".")
        inner = asked
        for part in above:
            inner = inner.setdefault(part, {})
            if isinstance(inner, str):
                raise OverrideError(f"both {part} and {name} are set. Remove one of them.")
        if last in inner:
            raise OverrideError(f"both {name} and a part of it are set. Remove one of them.")
        inner[last] = text
    return asked


def _check_names(settings: Overrides, parameters: Iterable[str], kind: type) -> None:
    known = list(dict.fromkeys([*parameters, *(f.name for f in dataclasses.fields(kind))]))
    for name in settings:
        first = name.split(".")[0]
        if first not in known:
            raise _unknown(name, first, known, settings[name], kind)


def _check_complete(asked: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if (
            parameter.kind in positional
            and parameter.default is inspect.Parameter.empty
            and name not in asked
        ):
            raise OverrideError(f"the function needs a value for {name!r}. Add {name}=VALUE.")


def _changed(value: Any, path: str, wanted: Any, new: Any) -> Any:
    """Return the value of a text; or, given a mapping of settings, `value` with these parts changed."""
    return convert(path, new, wanted) if isinstance(new, str) else _replaced(value, path, new)


def _replaced(owner: Any, path: str, asked: Mapping[str, Any]) -> Any:
    """Return a copy of `owner`, the dataclass or mapping at `path`, with some fields or values changed."""
    known = _types_in(owner)
    for name in asked:
        if name not in known:
            raise _unknown(f"{path}.{name}".lstrip("."), name, known, asked[name], type(owner))
    values = owner if isinstance(owner, Mapping) else {name: getattr(owner, name) for name in asked}
    changes = {
        name: _changed(values[name], f"{path}.{name}".lstrip("."), known[name], new)
        for name, new in asked.items()
    }
    if isinstance(owner, Mapping):
        return {**owner, **changes}
    try:
        return dataclasses.replace(owner, **changes)
    except ValueError as error:
        said = ", ".join(f"{path}.{name}={new}" for name, new in asked.items() if isinstance(new, str))
        told = f"{said or path}: {error}" if path else str(error)
        raise UsageError(f"{told}{place_of(asked)}") from None


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
    inner = {name: _dataclass_in(wanted) for name, wanted in get_type_hints(kind).items()}
    return [f"{name}.{f.name}" for name, owner in inner.items() if owner for f in dataclasses.fields(owner)]


def _dataclass_in(wanted: Any) -> Any:
    """Return the dataclass of settings in a type such as `Stop` or `Stop | None`; None if there is none."""
    kinds = get_args(wanted) if get_origin(wanted) in (types.UnionType, Union) else (wanted,)
    return next((kind for kind in kinds if getattr(kind, "is_known_by_place", False)), None)


def _unknown(name: str, part: str, known: Collection[str], asked: Any, kind: type) -> OverrideError:
    """Return the error for an unknown setting of a kind, with the setting or option that was meant."""
    options = {flag[2:].replace("-", "_"): flag for flag in FLAGS if flag.startswith("--")}
    paths = _paths_in(kind) if dataclasses.is_dataclass(kind) else ()
    meant = {each: each for each in (*known, *paths)} | ({} if "." in name else options)
    hint = ""
    if close := (same := synonym(part, meant)) or nearest(part, meant):
        hint = f" Did you mean {meant[close]!r}?"
    if not same and (text := instead(kind.__name__, part)):
        hint = f" In Python: {text}"
    there = f"Settings: {', '.join(known)}." if known else f"{name.rpartition('.')[0]} has no settings."
    return OverrideError(f"unknown setting {name!r}.{hint}\n  {there}{place_of(asked)}")


def _type_of_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    return Any if default in (None, inspect.Parameter.empty) else type(default)
