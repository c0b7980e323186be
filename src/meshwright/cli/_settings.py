"""Settings as texts, from the command line, `key=value` or `--key value`, and from YAML files.

`--settings FILE` sets what `key=value` sets, with nested or dotted keys:

    max_steps: 2000
    input.batch_size: 128
    evaluations:
      test: {when: 100}

Each value is taken as the text that would stand on the command line, and converted to the type of the
setting. So `1e-4` is a number wherever one is expected, though YAML itself reads it as a string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from meshwright.errors import OverrideError, nearest


class FromFile(str):
    """The text of a setting that was read from a file."""

    place: str
    """The file and the line: `settings.yaml, line 3`."""

    def __new__(cls, text: str, place: str) -> Self:
        setting = super().__new__(cls, text)
        setting.place = place
        return setting


def place_of(setting: Any) -> str:
    """Return the file and line of a setting, or of the first in a mapping, to end a message with."""
    while isinstance(setting, Mapping) and setting:
        setting = next(iter(setting.values()))
    return f"\n  It was set in {setting.place}." if isinstance(setting, FromFile) else ""


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
    options = sorted(flag for flag in flags if flag.startswith("--"))
    close = nearest(word, options)
    hint = f"Did you mean the option {close}?" if close else f"Its options: {', '.join(options)}."
    return OverrideError(f"{word} is not an option; as a setting it needs a value: {word} VALUE.\n  {hint}")


def read_settings(path: str | Path) -> dict[str, str]:
    """Return the settings of a YAML file by dotted path."""
    import yaml

    from meshwright.base._internal import read_text  # loads NumPy, which `--help` does not wait for

    text = ""
    try:
        text = read_text(path)
        root = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode | None):
            raise OverrideError(f"{path}, line 1: expected settings, one `key: value` per line.")
        rows = list(_flat("", root)) if root is not None else []
    except RecursionError:
        raise OverrideError(f"{path} is nested too deeply, or contains itself.") from None
    except (OSError, UnicodeError) as error:
        raise OverrideError(f"the settings file {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise OverrideError(f"{path}, {_problem(error, text)}") from None
    settings: dict[str, str] = {}
    lines: dict[str, int] = {}
    for name, value, line in rows:
        if name in settings:
            raise OverrideError(f"{path}, line {line}: {name} is set twice, first in line {lines[name]}.")
        settings[name], lines[name] = FromFile(value, f"{path}, line {line}"), line
    return settings


def _problem(error: Any, text: str) -> str:
    """Describe an error in YAML: the line's number, the problem, and the line itself."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    number = mark.line if mark is not None else text.count("\n", 0, getattr(error, "position", 0))
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    lines = text.splitlines()
    shown = f"\n    {lines[number].strip()}" if number < len(lines) else ""
    return f"line {number + 1}: this is not valid YAML: {problem}.{shown}"


def _flat(prefix: str, mapping: Any) -> Iterator[tuple[str, str, int]]:
    """Yield the dotted name, text and line number of each setting in a YAML node."""
    import yaml

    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _flat(f"{name}.", value)
        else:
            yield name, _text(value), key.start_mark.line + 1


def _text(node: Any) -> str:
    """Return a value as the text that it would be on the command line."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return "none" if node.tag == "tag:yaml.org,2002:null" else node.value
    node.flow_style = True
    return yaml.serialize(node, Dumper=yaml.SafeDumper, width=float("inf")).strip()
