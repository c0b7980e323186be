"""The files of a tokenizer, as `save_pretrained` of `transformers` writes them.

tokenizer.json            the vocabulary and the rules, read by the package `tokenizers`
tokenizer_config.json     the special tokens, and often the template of chats
chat_template.jinja       the template, before the one in tokenizer_config.json
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.documents import parse_object, read_file
from meshwright.errors import UsageError
from meshwright.storage import local_path

CONFIG, TEMPLATE, TOKENIZER = "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"
_LARGEST_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class Files:
    """What the files of a tokenizer say."""

    path: Path
    """The folder."""
    tokenizer: Any
    """The `tokenizers.Tokenizer`, without truncation and padding."""
    special: Mapping[str, Any]
    """The special tokens by their usual names, such as `eos_token`, as templates use them."""
    templates: Mapping[str, str]
    """The templates by name. One that has no name is "default"."""


def read_folder(path: str | Path) -> Files:
    """Read the files of a tokenizer.

    Raises:
      UsageError: A file is missing or damaged, the path is a URL, or `tokenizers` is not installed.
    """
    place = local_path(path, "Copy the tokenizer to a disk.")
    config = _config(place)
    return Files(place, _tokenizer(place), _special(config), _templates(place, config))


def end_token(path: str | Path) -> int | None:
    """Return the token that ends a text, by the files of a tokenizer; None if they name none.

    It needs no `tokenizers`.

    Args:
      path: The folder.

    Raises:
      UsageError: A file is damaged, or the path is a URL.

    Example:
      >>> place = mw.train_tokenizer(["the cat"], "ended", vocab_size=270, eos_token="<end>")
      >>> mw.tokens.end_token(place) == mw.generation.tokenizer_of(place).encode("<end>")[0]
      True
    """
    place = local_path(path, "Copy the tokenizer to a disk.")
    end = _special(_config(place)).get("eos_token")
    try:
        added = parse_object(read_file(place / TOKENIZER)).get("added_tokens", [])
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(f"{place / TOKENIZER} is not a tokenizer: {error}.") from None
    named = {each.get("content"): each.get("id") for each in added if isinstance(each, Mapping)}
    found = named.get(end) if end else None
    return found if isinstance(found, int) else None


def needed(package: str, what: str) -> Any:
    """Return an optional package.

    Raises:
      UsageError: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise UsageError(
            f"{what} needs the package {package}, which is not installed.\n"
            "  Install it: pip install 'meshwright[text]'."
        ) from None


def _config(place: Path) -> dict[str, Any]:
    try:
        return parse_object(read_file(place / CONFIG))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{place / CONFIG} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{place / CONFIG} is not a tokenizer's config: {error}.") from None


def _tokenizer(place: Path) -> Any:
    package, file = needed("tokenizers", f"the tokenizer in {place}"), place / TOKENIZER
    try:
        found = package.Tokenizer.from_buffer(read_file(file))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}.\n"
            f"  Give a folder with a {TOKENIZER}; `save_pretrained` of a fast tokenizer writes it."
        ) from None
    except Exception as error:  # the package raises no class of its own
        raise UsageError(f"{file} is not a tokenizer of the package tokenizers: {error}.") from None
    found.no_truncation()
    found.no_padding()
    return found


def _special(config: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: _text(value) for name, value in config.items() if name.endswith("_token")}
    return {name: text for name, text in named.items() if isinstance(text, str)}


def _text(value: Any) -> Any:
    return value.get("content") if isinstance(value, Mapping) else value


def _templates(place: Path, config: Mapping[str, Any]) -> dict[str, str]:
    said = config.get("chat_template")
    listed = said if isinstance(said, list) else [{"name": "default", "template": said}]
    pairs = [(each.get("name"), each.get("template")) for each in listed if isinstance(each, Mapping)]
    found = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    try:
        found["default"] = read_file(place / TEMPLATE).decode()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{place / TEMPLATE} cannot be read: {error}.") from None
    if too_long := [name for name, text in found.items() if len(text) > _LARGEST_TEMPLATE]:
        raise UsageError(f"the template {too_long[0]!r} in {place} is larger than a megabyte.")
    return found
