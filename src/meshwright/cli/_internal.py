"""The names of `cli` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.cli import main
else:
    __getattr__, __dir__ = lazy_names(__name__)
