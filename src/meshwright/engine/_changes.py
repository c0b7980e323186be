"""Settings that are others than those that a run was last trained with."""

from pathlib import Path

from meshwright import description, process
from meshwright.documents import read_file
from meshwright.engine._open_run import OpenRun
from meshwright.engine._run_files import secrets_in, without_secrets
from meshwright.engine._settings import Settings
from meshwright.errors import UsageError

_MOST_SHOWN = 20


def changes(settings: Settings, directory: Path) -> list[str]:
    """Return in what the settings differ from those of the attempt before, value by value. Not collective."""
    file = directory / "experiment.txt"
    if not file.is_file():
        return []
    described = without_secrets(settings.described(), secrets_in(settings.origin))
    return [
        str(each) for each in description.differences(read_file(file).decode(errors="replace"), described)
    ]


def tell_changes(settings: Settings, opened: OpenRun) -> None:
    """Tell in what the settings differ from those of the attempt before. Collective.

    Raises:
      UsageError: they differ, and the settings are strict.
    """
    directory = opened.directory
    if directory is None:
        return
    found = process.on_lead(lambda: changes(settings, directory))
    if not found:
        return
    left = f"\n    and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    said = "".join(f"\n    {each}" for each in found[:_MOST_SHOWN]) + left
    if settings.is_strict:
        raise UsageError(
            f"{settings.place} was trained with other settings so far:{said}\n  Give the same ones, another "
            "run directory, or leave out strict to go on with those that are given."
        )
    opened.say(f"  ! settings differ from those that it was trained with so far:{said}")
