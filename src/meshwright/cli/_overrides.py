"""Settings given on the command line: `key=value` or `--key value`, typed by what they set.

A setting is first looked for among the parameters of the function that makes the experiment, then
among the fields of what it returns, by dotted path.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from meshwright.errors import OverrideError, UsageError, nearest

Overrides = Mapping[str, str]


def split(arguments: Sequence[str], flags: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return `arguments` without the settings among them, and the settings.

    What follows a bare `--` is left alone.

    Args:
      flags: options that are not settings.

    Raises:
      OverrideError: `--key` stands without a value.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest, settings, waiting = [], {}, list(arguments[:end])
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("--") and name not in flags:
            if not equals and (not waiting or waiting[0].startswith("--")):
                raise OverrideError(
                    f"{word} needs a value: {word} VALUE. Options are {', '.join(sorted(flags))}."
                )
            settings[name[2:].replace("-", "_")] = value if equals else waiting.pop(0)
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            settings[name] = value
        else:
            rest.append(word)
    return rest + list(arguments[end:]), settings


def build(function: Callable[..., Any], settings: Overrides, kind: type) -> Any:
    """Return what `function` makes with `settings`, those that are not its parameters set on the result.

    Raises:
      OverrideError: a name fits neither the function nor `kind`, a value has the wrong type, or a
        parameter without a default has none.
      UsageError: `function` does not return a `kind`.
    """
    parameters = inspect.signature(function).parameters
    _check_names(settings, parameters, kind)
    _check_complete(settings, parameters)
    hints = get_type_hints(function)
    own = {
        name: convert(name, text, hints.get(name, _type_of_default(parameters[name])))
        for name, text in settings.items()
        if name in parameters
    }
    made = function(**own)
    if not isinstance(made, kind):
        raise UsageError(
            f"{function.__module__}:{function.__qualname__} returned {type(made).__name__}, "
            f"not {kind.__name__}.\n  A function to train from returns an mw.Experiment."
        )
    for name, text in settings.items():
        if name not in parameters:
            made = _replaced(made, name, name.split("."), text)
    return made


def convert(name: str, text: str, wanted: Any) -> Any:
    """Return `text` as the type `wanted`: none, as it stands, as YAML, or as a comma-separated list.

    Raises:
      OverrideError: it is none of these.
    """
    import pydantic
    import yaml

    try:
        adapter = pydantic.TypeAdapter(wanted)
    except pydantic.errors.PydanticUserError:
        raise OverrideError(f"{name} cannot be set on the command line: it is a {wanted}.") from None
    for reading in (
        lambda: _NONE[text.lower()],
        lambda: text,
        lambda: yaml.safe_load(text),
        lambda: text.split(","),
    ):
        try:
            return adapter.validate_python(reading())
        except (pydantic.ValidationError, yaml.YAMLError, KeyError):
            continue
    raise OverrideError(f"{name}={text}: expected {_spelled(wanted)}, found {text!r}.")


_NONE = {"none": None}


def _check_names(settings: Overrides, parameters: Iterable[str], kind: type) -> None:
    fields = [f.name for f in dataclasses.fields(kind)]
    for name in settings:
        known = [*parameters, *fields]
        if name not in parameters and name.split(".")[0] not in fields:
            raise _unknown(name, name, known)


def _check_complete(settings: Overrides, parameters: Mapping[str, inspect.Parameter]) -> None:
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if (
            parameter.kind in positional
            and parameter.default is inspect.Parameter.empty
            and name not in settings
        ):
            raise OverrideError(f"the function needs a value for {name!r}: {name}=VALUE.")


def _replaced(owner: Any, name: str, path: list[str], text: str) -> Any:
    """Return `owner` with the field at `path` replaced; `name` is the whole path, for errors."""
    first, *rest = path
    if isinstance(owner, Mapping):
        if first not in owner:
            raise _unknown(name, first, owner)
        return {**owner, first: _replaced(owner[first], name, rest, text)}
    hints = get_type_hints(type(owner)) if dataclasses.is_dataclass(owner) else {}
    if first not in hints:
        raise _unknown(name, first, hints)
    value = _replaced(getattr(owner, first), name, rest, text) if rest else convert(name, text, hints[first])
    return dataclasses.replace(owner, **{first: value})


def _unknown(name: str, part: str, known: Iterable[str]) -> OverrideError:
    close = nearest(part, known)
    hint = f" Did you mean {close!r}?" if close else ""
    return OverrideError(f"unknown setting {name!r}.{hint}\n  There are: {', '.join(known) or 'none'}.")


def _type_of_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    return Any if default in (None, inspect.Parameter.empty) else type(default)


def _spelled(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
