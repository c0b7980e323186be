"""Whose word it is that a function is to be run: the user's, or that of a file that others may have written.

`experiment.json` names a function and what it is called with. So whoever can write the file chooses what runs
where the run is resumed, as whoever does that.
"""

import grp
import inspect
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, get_type_hints

from meshwright.errors import UsageError
from meshwright.storage import is_address, local_path


def check_vouched(place: str, origin: Mapping[str, Any], named: str | None) -> None:
    """Check, before anything of it is imported, that the user means to run what `experiment.json` says.

    Args:
      place: the run, a directory or an address.
      origin: what the file says.
      named: the function that the user named, if any: that it runs is then the user's word.

    Raises:
      UsageError: it is not known that the user does, or what is named is another function.
    """
    target = origin["target"]
    if named not in (None, target):
        raise UsageError(
            f"{place} was started from {target}, not from {named}. Leave out {named} to continue it.\n"
            f"  Or start another run: `meshwright train {named} workdir=PATH`"
        )
    if named is None and (doubt := _doubt_about_file(place) or _doubt_about_module(place, target)):
        raise _not_vouched(place, origin, doubt)


def check_is_experiment(place: str, origin: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Check of a function that the user has not named that it says of itself that it makes an experiment.

    Those in files below the current directory need not say so.

    Raises:
      UsageError: it does not.
    """
    from meshwright.experiment import Experiment

    source = _source_of(origin["target"])
    is_here = source is not None and source.is_relative_to(Path.cwd())
    if not is_here and not _returns(function, Experiment):
        doubt = (
            f"{origin['target']} is not below the current directory, and is not annotated to return an "
            "mw.Experiment"
        )
        raise _not_vouched(place, origin, doubt)


def _not_vouched(place: str, origin: Mapping[str, Any], doubt: str) -> UsageError:
    settings = "".join(f"\n    {name}={text}" for name, text in origin["settings"].items())
    return UsageError(
        f"{place} was not resumed: its experiment.json names the code to run, and {doubt}.\n"
        f"  It names {origin['target']}, with{settings or ' no settings'}\n"
        "  If you trust this, name the function yourself: "
        f"meshwright resume {shlex.quote(place)} {shlex.quote(origin['target'])}"
    )


def _doubt_about_file(place: str) -> str | None:
    """Return why others may have written what the file says; None if they cannot."""
    if is_address(place):
        return "anyone who can write to this URL may have changed it"
    for path in (local_path(place), local_path(place) / "experiment.json"):
        found = path.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to another user"
        if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)):
            return f"other users can write to {path}"
    return None


def _doubt_about_module(place: str, target: str) -> str | None:
    module = target.partition(":")[0]
    if module.partition(".")[0] in sys.stdlib_module_names:
        return f"{module} is a module of Python itself"
    source = _source_of(target)
    if source is not None and source.is_relative_to(local_path(place).resolve()):
        return f"the code is in the run directory itself, {source}"
    return None


def _source_of(target: str) -> Path | None:
    """Return the file of a function's module, of which nothing is run, nor of the packages around it."""
    place: list[str] | None = ["", *sys.path]
    name, origin = "", None
    for part in target.partition(":")[0].split("."):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, place)
        if found is None:
            return None
        place, origin = found.submodule_search_locations, found.origin
    return Path(origin).resolve() if origin else None


def _is_own_group(gid: int) -> bool:
    """Return whether a group has this user alone, as many systems make one for each."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _returns(function: Callable[..., Any], kind: type) -> bool:
    try:
        found = get_type_hints(function).get("return")
    except (TypeError, NameError):
        return False
    return inspect.isclass(found) and issubclass(found, kind)
