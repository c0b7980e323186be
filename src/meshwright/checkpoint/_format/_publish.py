"""The moment at which a save becomes a checkpoint: a rename, or the creation of an object."""

from contextlib import suppress
from pathlib import Path

from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, manifest_text
from meshwright.durable import fsync_directory, write_whole
from meshwright.errors import MeshwrightError
from meshwright.storage import Directory, ObjectPath, parts_of


def name_in_checkpoint(temporary: Directory, name: str) -> str:
    """Return the name under which the manifest has a file that was written as `temporary / name`."""
    return f"{temporary.name}/{name}" if isinstance(temporary, ObjectPath) else name


def publish(temporary: Directory, final: Directory, manifest: Manifest) -> None:
    """Make the checkpoint `final` of the files in `temporary`.

    Raises:
      MeshwrightError: In an object store, another attempt was first, or files are gone.
      OSError: On a file system, another attempt was first.
    """
    if isinstance(temporary, Path) and isinstance(final, Path):
        _rename(temporary, final, manifest)
    elif isinstance(temporary, ObjectPath) and isinstance(final, ObjectPath):
        _create(temporary, final, manifest)


def _rename(temporary: Path, final: Path, manifest: Manifest) -> None:
    write_whole(temporary / MANIFEST, manifest_text(manifest))
    for part in temporary.glob("part-*.json"):
        part.unlink()
    fsync_directory(temporary)
    temporary.rename(final)
    fsync_directory(final.parent)


def _create(temporary: ObjectPath, final: ObjectPath, manifest: Manifest) -> None:
    there = set(final.below())
    needed = (part.path for file in manifest.files for part in parts_of(final / file.name, file.nbytes))
    if gone := [path.name for path in needed if path.key not in there]:
        raise MeshwrightError(f"{', '.join(gone)} in {final} were removed while they were written.")
    if not (final / MANIFEST).create(manifest_text(manifest)):
        raise MeshwrightError(f"another run saves in {final.parent} and was first to save {final.name}.")
    with suppress(MeshwrightError):  # it is saved, and the part files go when it goes
        temporary.remove_tree("part-*.json")
