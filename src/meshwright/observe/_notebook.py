"""Output in a notebook: one line that is replaced, where a terminal has a panel.

IPython is no dependency: a notebook's kernel has imported it, so it is taken from `sys.modules`.
"""

import sys
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookLine:
    """A line of a cell's output that each call replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        """Show `text` in place of the text before."""
        content = {"text/plain": text}
        if self._handle is None:
            display = sys.modules["IPython"].display
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
