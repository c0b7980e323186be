"""Notebooks as pages of the site: their cells as Markdown and code, their kept outputs as text."""

import json
from pathlib import Path

from mkdocs.structure.files import File

_TEXT = "text/plain"


def on_files(files, config):
    """Add a page for each notebook."""
    for notebook in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        uri = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, uri, content=as_markdown(notebook)))
    return files


def as_markdown(notebook: Path) -> str:
    """Return a notebook's cells and outputs as a page, with a link to the file."""
    cells = json.loads(notebook.read_text())["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    link = f"[Download this notebook]({notebook.name}){{ download }}"
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n"


def _parts(cell: dict) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    outputs = "".join(map(_text, cell["outputs"])).strip("\n")
    return [f"```python\n{source}\n```", *([f"```text\n{outputs}\n```"] if outputs else [])]


def _text(output: dict) -> str:
    text = output.get("text") or output.get("data", {}).get(_TEXT, "")
    return "".join(text).rstrip("\n") + "\n"
