"""The files beside a model's weights that loaders need: its tokenizer, and its settings for generation."""

import errno
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from meshwright.base._internal import local_path, read_file
from meshwright.errors import CheckpointError, UsageError
from meshwright.processes._internal import on_lead

NAMES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)
"""The names that `save_pretrained` of Hugging Face gives to these files. Nothing else is copied."""
log = logging.getLogger("meshwright")


def companions(directory: Path) -> dict[str, bytes]:
    """Return the contents of a model's known files, by name. Links, and what is no file, are left out.

    A link may lead to any file of this machine, so it is not followed, and the log says so.
    """
    contents: dict[str, bytes] = {}
    for path in (directory / name for name in NAMES):
        try:
            contents[path.name] = _content(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EINVAL):
                raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
            log.warning("%s is not copied, as it is a link or not an ordinary file; copy it yourself", path)
    return contents


def check_companions(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Check that files can be written to a directory, or are there already."""
    for name, content in contents.items():
        path = directory / name
        if os.path.lexists(path) and (path.is_symlink() or read_file(path) != content):
            raise UsageError(
                f"{path} exists already, and differs from the model's: choose another directory."
            )


def write_companions(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files that are not there yet."""
    for name, content in contents.items():
        if not os.path.lexists(directory / name):
            with (directory / name).open("xb") as file:
                file.write(content)


def copy_companions(model: str | Path, directory: str | Path) -> list[Path]:
    """Copy the tokenizer, its template and the settings for generation of a model beside another one.

    Collective: process 0 copies. Files that are there already stay. Links are left out, and logged.

    Returns:
      The paths of all these files.
    """
    contents, target = companions(local_path(model)), local_path(directory)
    check_companions(target, contents)
    on_lead(lambda: write_companions(target, contents))
    return [target / name for name in contents]


def _content(path: Path) -> bytes:
    """Return the content of a file."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not an ordinary file", str(path))
        return file.read()
