"""Directories whose entries are named by steps."""

import logging
import re
from collections.abc import Callable, Iterable

from meshwright.base._internal import Directory

_NUMBERED = re.compile(r"(?:(?:checkpoint|ckpt|step)[_-]?)?([0-9]+)")

log = logging.getLogger("meshwright")


def step_of(name: str) -> int | None:
    """Return the step in a directory's name, such as `0000000800` or `checkpoint_800`; None without any."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def steps_in(
    place: Directory,
    is_step: Callable[[Directory], bool],
    number: Callable[[str], int | None] = step_of,
) -> list[Directory]:
    """Return the entries whose names have a `number` and that pass `is_step`, the lowest first.

    Of two with the same number, the longer name comes last: a program that pads with zeros pads all names.
    """
    if not place.is_dir():
        return []
    numbered = [
        (step, len(entry.name), entry)
        for entry in place.iterdir()
        if (step := number(entry.name)) is not None
    ]
    return [entry for *_, entry in sorted(numbered, key=lambda each: each[:2]) if is_step(entry)]


def complete_in(
    steps: Iterable[Directory],
    is_complete: Callable[[Directory], bool],
    number: Callable[[str], int | None] = step_of,
) -> dict[int, Directory]:
    """Return the complete steps, by number, the lowest first."""
    whole = ((number(step.name), step) for step in steps if is_complete(step))
    return {step: path for step, path in whole if step is not None}


def newest(steps: list[Directory], is_complete: Callable[[Directory], bool]) -> Directory:
    """Return the last complete step, and warn if later ones are not complete; the last one if none is."""
    complete = next((step for step in reversed(steps) if is_complete(step)), steps[-1])
    if complete != steps[-1]:
        log.warning("%s is not complete; the newest that is: %s", steps[-1], complete.name)
    return complete
