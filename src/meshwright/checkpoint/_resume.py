"""Which checkpoint a run goes on from: the newest that is intact, on all processes the same."""

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TypeVar

from meshwright import tree
from meshwright.errors import DamagedError
from meshwright.process import together
from meshwright.tree import PyTree

T = TypeVar("T")


def newest_intact(steps: Sequence[int], restore: Callable[[int], T]) -> tuple[T, dict[int, str]]:
    """Return `restore(step)` of the newest step that is intact, and what is wrong with newer ones.

    A piece that one process alone finds damaged makes all of them fall back: most read different
    pieces. Collective: call it on the main thread of all processes, with the same steps in ascending
    order.

    Raises:
      DamagedError: None is intact.
      MeshwrightError: Whatever else `restore` raised on any process. A checkpoint that does not match
        is the user's to decide, and an older one would hide it.
    """
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        try:
            return together(partial(restore, step)), damaged
        except DamagedError as error:
            damaged[step] = str(error)
    raise DamagedError(
        "every checkpoint is damaged, so there is none to continue from:\n  "
        + "\n  ".join(f"step {step}: {what}" for step, what in damaged.items())
        + "\nCopy one back from elsewhere; or, to start afresh, move them away."
    )


def made_anew(lacking: Set[str], otherwise: Callable[[], PyTree]) -> PyTree:
    """Return the leaves of these names of what `otherwise` makes; nothing else of it is held.

    It is called if there are any names. Collective, if `otherwise` is.
    """
    made = tree.named_leaves(otherwise()) if lacking else {}
    return tree.nested({name: made[name] for name in lacking if name in made})
