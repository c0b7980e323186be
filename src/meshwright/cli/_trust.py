"""Checks before `resume` or `eval` runs a function that a file, and not the user, has named.

`experiment.json` names a function and its arguments. So anybody who can write that file chooses the code
that runs, with the rights of the user who opens the run again.
"""

import grp
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from meshwright.base import _internal as base
from meshwright.engine import _internal as engine
from meshwright.errors import UsageError


class Purpose(NamedTuple):
    """A command that opens a run again, and what its errors say."""

    command: str
    done: str
    """The run was not …: `resumed`."""
    doing: str
    """The line that begins with this names the function."""
    in_program: str
    """The advice where another program, `{command}`, made the run at `{place}`."""
    without_file: str
    """The advice where `experiment.json` is damaged."""
    by_another: str
    """The advice for who names another function, `{named}`."""
    naming: str = "{place} {target}"
    """The words after the command that name the run and the function."""


def check_vouched(place: str, origin: Mapping[str, Any], named: str | None, purpose: Purpose) -> None:
    """Check, before importing any of its code, that the user wants to run what `experiment.json` names."""
    target = origin["target"]
    if named not in (None, target):
        raise UsageError(
            f"{place} was started from {target}, not from {named}. Leave out {named}.\n"
            f"  {purpose.by_another.format(named=named)}"
        )
    if named is None and (doubt := _doubt_about_file(place) or _doubt_about_module(place, target)):
        raise _not_vouched(place, origin, purpose, doubt)


def check_is_experiment(
    place: str, origin: Mapping[str, Any], purpose: Purpose, function: Callable[..., Any]
) -> None:
    """Check that a function that the user has not named is annotated to return an Experiment.

    A function in a file below the current directory needs no annotation.
    """
    source = _source_of(origin["target"])
    is_here = source is not None and source.is_relative_to(Path.cwd())
    if not is_here and not _returns(function, engine.Experiment):
        doubt = (
            f"{origin['target']} is outside the current directory and not annotated to return an "
            "mw.Experiment"
        )
        raise _not_vouched(place, origin, purpose, doubt)


def _not_vouched(place: str, origin: Mapping[str, Any], purpose: Purpose, doubt: str) -> UsageError:
    settings = "".join(f"\n    {name}={text}" for name, text in origin["settings"].items())
    return UsageError(
        f"{place} was not {purpose.done}: its experiment.json names the code to run, and {doubt}.\n"
        f"  It names {origin['target']}, with{settings or ' no settings'}\n"
        "  If you trust this, name the function yourself: "
        f"meshwright {purpose.command} "
        + purpose.naming.format(place=shlex.quote(place), target=shlex.quote(origin["target"]))
    )


def _doubt_about_file(place: str) -> str | None:
    """Return the reason why others may have written the file; None if they cannot."""
    if base.is_address(place):
        return "anyone who can write to this URL may have changed it"
    for path in (base.local_path(place), base.local_path(place) / "experiment.json"):
        status = path.stat()
        mode, group = status.st_mode, status.st_gid
        if status.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to another user"
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(group)):
            return f"other users can write to {path}"
    return None


def _doubt_about_module(place: str, target: str) -> str | None:
    module = target.partition(":")[0]
    if module.partition(".")[0] in sys.stdlib_module_names:
        return f"{module} belongs to Python's standard library"
    source = _source_of(target)
    if source is not None and source.is_relative_to(base.local_path(place).resolve()):
        return f"the code is in the run directory itself, {source}"
    return None


def _source_of(target: str) -> Path | None:
    """Return the file of a function's module, found without running the module or the packages around it."""
    place: list[str] | None = ["", *sys.path]
    origin = None
    for part in target.partition(":")[0].split("."):
        spec = PathFinder.find_spec(part, place)  # of a whole name, Python would look for imported parents
        if spec is None:
            return None
        place, origin = [*(spec.submodule_search_locations or ())], spec.origin
    return Path(origin).resolve() if origin else None


def _is_own_group(gid: int) -> bool:
    """Return whether the user is the group's only member. Many systems make such a group for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _returns(function: Callable[..., Any], kind: type) -> bool:
    try:
        returned = get_type_hints(function).get("return")
    except (TypeError, NameError):
        return False
    return isinstance(returned, type) and issubclass(returned, kind)
