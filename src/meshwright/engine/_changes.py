"""The differences between the settings of this attempt of a run and those of the attempt before."""

from pathlib import Path

from meshwright.base._internal import description, read_file
from meshwright.engine._open_run import OpenRun
from meshwright.engine._run_files import secrets_in, without_secrets
from meshwright.engine._settings import Settings
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes

_MOST_SHOWN = 20


def changes(settings: Settings, directory: Path) -> list[str]:
    """Return a line for each setting that differs from the attempt before. Not collective."""
    file = directory / "experiment.txt"
    if not file.is_file():
        return []
    described = without_secrets(settings.described(), secrets_in(settings.origin))
    return [
        str(each) for each in description.differences(read_file(file).decode(errors="replace"), described)
    ]


def show_changes(settings: Settings, opened: OpenRun) -> None:
    """Show the user which settings differ from those of the attempt before. Collective."""
    directory = opened.directory
    if directory is None:
        return
    found = processes.on_lead(lambda: changes(settings, directory))
    if not found:
        return
    more = f"\n    and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    lines = "".join(f"\n    {each}" for each in found[:_MOST_SHOWN]) + more
    if settings.is_strict:
        raise UsageError(
            f"{settings.place} was trained with different settings so far:{lines}\n"
            "  Give the same settings or another run directory, or leave out `strict` to continue with the "
            "new settings."
        )
    opened.say(f"  ! the settings differ from those of the training so far:{lines}")
