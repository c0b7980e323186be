"""The roll call when a run starts again: which checkpoints in memory all hosts have."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import ON_OTHER_HOSTS
from meshwright.checkpoints._format._manifest import read_manifest
from meshwright.checkpoints._host_memory._host_directory import Place
from meshwright.errors import InputError
from meshwright.processes import _internal as processes

ATTEMPT = "memory_attempt"
"""The key in a manifest's `writer` with the start of the run that saved. Parts of one step that two starts
wrote are not one checkpoint."""


def complete_steps(place: Place) -> tuple[list[int], dict[int, str]]:
    """Return the steps of which each host has its part, and what is wrong with the others. Collective.

    Only manifests and the sizes of files are compared: whoever reads the data compares its checksums.
    """
    return completed(processes.gather(_held(place.path)))


def completed(held: Sequence[Mapping[str, str]]) -> tuple[list[int], dict[int, str]]:
    """Return the steps that all processes hold, and by step what is wrong with those that only some do.

    Example:
      >>> from meshwright.checkpoints._host_memory._complete_steps import completed
      >>> completed([{"10": "5e0c", "20": "5e0c"}, {"10": "5e0c"}])
      ([10], {20: 'process 1 does not have its part'})
    """
    found, incomplete = list[int](), dict[int, str]()
    for step in sorted({int(step) for each in held for step in each}):
        parts = [each.get(str(step)) for each in held]
        wrong = [
            f"process {number} {'does not have its part' if part is None else f'finds {part[1:]}'}"
            for number, part in enumerate(parts)
            if part is None or part.startswith("!")
        ]
        if not wrong and len(set(parts)) > 1:
            wrong = ["its parts are from different starts of the run"]
        if wrong:
            incomplete[step] = "; ".join(wrong)
        else:
            found.append(step)
    return found, incomplete


def _held(path: Path) -> dict[str, str]:
    steps = _directory.complete_steps(path)
    return {str(step): _part(path / _directory.step_name(step)) for step in steps}


def _part(path: Path) -> str:
    """Return the start of the run that wrote the checkpoint of a step here, or `!` and what is wrong."""
    try:
        manifest = read_manifest(path)
        for file in manifest.files:
            there = path / file.name
            if file.name != ON_OTHER_HOSTS and (not there.is_file() or there.stat().st_size != file.nbytes):
                return f"!that {there} is missing or cut off"
        return str(manifest.writer.get(ATTEMPT))
    except (OSError, InputError) as error:
        return f"!{error}"
