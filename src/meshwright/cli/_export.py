"""`meshwright export`: a checkpoint, in a format that other programs read."""

import argparse
import re
from collections.abc import Callable

from meshwright.checkpoint import export_safetensors, open_source
from meshwright.cli._train import Result
from meshwright.errors import UsageError
from meshwright.experiment import checkpoints_of
from meshwright.sharding import human_bytes


def export(options: argparse.Namespace) -> Result:
    """Write the arrays of a checkpoint into a directory.

    Raises:
      UsageError: a choice fits nothing.
      InputError: there is no checkpoint, or it is damaged.
    """
    source = open_source(checkpoints_of(options.source))
    names = _only(options.only) if options.only else None
    files = export_safetensors(source, options.directory, dtype=options.dtype, names=names)
    nbytes = sum(file.stat().st_size for file in files)
    text = f"{source} is now in {options.directory}: {human_bytes(nbytes)} in {len(files)} files"
    document = {
        "checkpoint": str(source),
        "step": source.step,
        "files": list(map(str, files)),
        "bytes": nbytes,
    }
    return text, document


def _only(pattern: str) -> Callable[[str], str | None]:
    """Return the `names` that choose arrays; with a group in `pattern`, that is what they are called."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--only {pattern!r} is no regular expression: {error}.") from None

    def name(ours: str) -> str | None:
        match = regex.fullmatch(ours)
        return (match[1] if regex.groups else ours).replace("/", ".") if match else None

    return name
