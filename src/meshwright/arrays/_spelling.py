"""How the names of a source compare with ours.

Formats join the keys of a leaf by dots, as safetensors, or by nothing, as seqax, and then its name cannot
always be taken apart again. So nothing is renamed when a checkpoint is opened. A source says how its names
and ours become alike, a wanted name is looked up by that, and whatever is made of the source keeps it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import CheckpointError


@dataclass(frozen=True)
class Spelling:
    """How a format spells names; unless said otherwise, as we do."""

    folded: Callable[[str], str] = str
    """Returns what our name of a leaf and the format's name of it both become."""
    ours: Callable[[str], str] = str
    """Returns our name of one of the format's, as far as that can be told."""


def spelling_of(source: object) -> Spelling:
    """Return how a source spells names."""
    return getattr(source, "spelling", Spelling())


def stored_names(source: Any, names: Iterable[str]) -> dict[str, str]:
    """Return what `source` calls each leaf, by our name of it; where that is not there, our name.

    Of two that are spelt alike neither is guessed.

    Raises:
      CheckpointError: Two names cannot be told apart there.
    """
    stored, folded = source.arrays(), spelling_of(source).folded
    alike: dict[str, list[str]] = {}
    for name in stored:
        alike.setdefault(folded(name), []).append(name)
    found = {}
    for name in names:
        several = alike.get(folded(name), ())
        found[name] = several[0] if name not in stored and len(several) == 1 else name
    ours: dict[str, str] = {}
    for name, theirs in found.items():
        if ours.setdefault(theirs, name) != name:
            raise CheckpointError(f"{ours[theirs]} and {name} are one name, {theirs}, in {source}.")
    return found


def names_below(source: Any, prefix: str) -> dict[str, str]:
    """Return the names of `source` below `prefix`, one of ours, by what is left of them without it.

    Where keys are joined by nothing, all count that begin so.
    """
    folded, plain = spelling_of(source).folded, f"{prefix}/"
    spelt = folded(plain)
    found = {}
    for name in source.arrays():
        if name.startswith(plain):
            found[name.removeprefix(plain)] = name
        elif "/" not in name and (joined := folded(name)).startswith(spelt) and joined != spelt:
            found[joined.removeprefix(spelt)] = name
    return found
