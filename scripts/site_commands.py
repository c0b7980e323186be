"""The page of the site on the command line: the help of each command."""

import os
import sys
from pathlib import Path

from mkdocs.structure.files import File

URI = "reference/commands.md"


def on_files(files, config):
    """Add the page."""
    files.append(File.generated(config, URI, content=page()))
    return files


def page() -> str:
    """Return the help of all commands as Markdown. Loads neither JAX nor NumPy."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    from meshwright.cli._commands import grammar

    os.environ["COLUMNS"] = "100"
    known = grammar()
    parts = [
        "# Commands\n\nThis is what `meshwright COMMAND --help` prints.",
        f"```text\n{known.top.format_help()}```",
    ]
    for name, parser in known.parsers.items():
        parts += [f"## meshwright {name}", f"```text\n{parser.format_help()}```"]
    return "\n\n".join(parts) + "\n"
