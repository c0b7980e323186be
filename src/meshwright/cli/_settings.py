"""Settings from YAML files: `--settings FILE` says what `key=value` does, nested or with dotted keys.

    max_steps: 2000
    input.batch_size: 128
    evaluations:
      test: {when: 100}

Each value is the text that would stand on the command line, to be read as the type that it sets: so `1e-4`
is a number wherever one is wanted, which YAML itself does not say.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.errors import OverrideError
from meshwright.storage import read_text


def read_settings(path: str | Path) -> dict[str, str]:
    """Return the settings of a YAML file by dotted path.

    Raises:
      OverrideError: there is no such file, it is no YAML, no mapping, or says something twice; with the line.
    """
    import yaml

    try:
        root = yaml.compose(read_text(path), yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode | None):
            raise OverrideError(f"--settings {path} holds no settings: write `key: value`, a line for each.")
        found = list(_flat("", root)) if root is not None else []
    except RecursionError:
        raise OverrideError(f"--settings {path} is nested too deeply, or in itself.") from None
    except (OSError, UnicodeError) as error:
        raise OverrideError(f"--settings {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise OverrideError(f"--settings {path} is no YAML: {error}") from None  # which names the line
    settings: dict[str, str] = {}
    for name, text, line in found:
        if name in settings:
            raise OverrideError(f"--settings {path}, line {line}: {name} is set twice.")
        settings[name] = text
    return settings


def _flat(prefix: str, mapping: Any) -> Iterator[tuple[str, str, int]]:
    """Yield each setting of a node of YAML with its line."""
    import yaml

    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _flat(f"{name}.", value)
        else:
            yield name, _text(value), key.start_mark.line + 1


def _text(node: Any) -> str:
    """Return a value as it would stand on the command line."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return "none" if node.tag == "tag:yaml.org,2002:null" else node.value
    node.flow_style = True
    return yaml.serialize(node, Dumper=yaml.SafeDumper, width=float("inf")).strip()
