"""The files of a run directory that say where its checkpoints are, and how it was described.

experiment.txt      its settings, one a line
environment.json    where the checkpoints are, if they are not in the folder `checkpoints`

`engine` writes both.
"""

from meshwright.base._internal import description, join, location, parse_object, read_text
from meshwright.errors import InputError, MeshwrightError


def checkpoints_of(path: str) -> str:
    """Return where the checkpoints of the run at `path` are; `path` itself, where there is no run to be read.

    Example:
      >>> mw.checkpoints._internal.checkpoints_of("/tmp/exported")
      '/tmp/exported'
    """
    try:
        if _read(join(path, "experiment.txt")) is None:
            return path
    except InputError:  # it is there, and what it says is not needed
        pass
    except MeshwrightError:  # the store does not answer, as whoever opens the checkpoints will say
        return path
    file = join(path, "environment.json")
    try:
        elsewhere = parse_object(_read(file) or "{}").get("checkpoints")
        if not isinstance(elsewhere, str | None) or "\0" in (elsewhere or ""):
            raise ValueError("it names no place")
    except (ValueError, InputError) as error:
        raise InputError(f"{file}, which says where the checkpoints are, is damaged: {error}.") from None
    return elsewhere or join(path, "checkpoints")


def settings_at(path: str) -> dict[str, str]:
    """Return the settings of a run by dotted path; {} where there is no run to be read.

    Example:
      >>> mw.checkpoints._internal.settings_at("/tmp/exported")
      {}
    """
    try:
        place = location(path)
        run = place.parent if place.name == "checkpoints" else place
        return description.values(_read(str(run / "experiment.txt")) or "")
    except MeshwrightError:
        return {}


def _read(place: str) -> str | None:
    """Return what is in a file, or None where there is none."""
    try:
        return read_text(place)
    except OSError:
        return None
