"""Any model as plain functions on plain trees, whichever library it was written with.

A library's object is taken apart once: its structure stays here, and its arrays become dictionaries under the
names of its attributes, `hidden/kernel`, without boxes or variables that rules and checkpoints would have to
know. The object is rebuilt where a step is traced, so running the step costs nothing more.

Flax and Equinox are imported when a model of theirs is given, and not before.
"""

from meshwright.adapters._bound import Bound
from meshwright.adapters._functional import Functional, functional

__all__ = ["Bound", "Functional", "functional"]
