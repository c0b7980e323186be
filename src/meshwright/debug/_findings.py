"""The causes of a difference between a run that was continued and one that was not, judged by experiments.

Two fresh runs, A and again, are compared, then A with the run that was killed and continued: the first state,
the program, each batch. One step that was repeated on the same state and batch decides the rest.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented

Digests = Mapping[str, str]


@documented
@dataclass(frozen=True)
class Cause:
    """A cause of a difference."""

    kind: str
    """One of `unseeded data`, `position of the data`, `random call at trace time`, `state outside`,
    `nondeterministic kernels`, `saved form` and `unknown`."""
    what: str
    """The difference in words."""
    line: str = ""
    """The line of source, if it is known."""
    advice: str = ""
    """A change of the program that avoids it."""


@dataclass(frozen=True)
class Notes:
    """What the processes of a run noted; see `_child.py`. Of two notes of a batch the later one counts."""

    saved: Mapping[str, bool]
    """True for `cast` and `names` if they change saved arrays; the value of `save.data_position`."""
    programs: Sequence[Mapping[str, Any]]
    """The programs, one of each process."""
    first: Digests
    """Digests of the first state by array."""
    batches: Mapping[int, Digests]
    """Digests of each batch by array."""
    repeated: Mapping[str, Any] | None
    """The result of repeating a step; None if that was not done."""


def read_notes(path: Path) -> Notes:
    """Return the notes in a file, without a line that a kill cut off."""
    records: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            note = json.loads(line)
        except ValueError:
            continue
        records.setdefault(note["note"], []).append(note)
    return Notes(
        saved=(records.get("saved") or [{}])[0],
        programs=records.get("program", []),
        first=(records.get("first") or [{"arrays": {}}])[0]["arrays"],
        batches={note["number"]: note["arrays"] for note in records.get("batch", [])},
        repeated=(records.get("repeated") or [None])[-1],
    )


def causes(a: Notes, again: Notes, killed: Notes, continued_at: int) -> list[Cause]:
    """Return the causes of a difference, at least one."""
    causes = [
        *_of_first_states(a, again),
        *_of_programs(a, again, killed),
        *_of_data(a, again, killed, continued_at),
        *_of_step(again),
        *_of_saving(a.saved),
    ]
    return causes or [
        Cause(
            "unknown",
            "the programs and the batches are the same, and so is a step that is repeated. Is there a state "
            "that is neither in the TrainState nor in the data?",
        )
    ]


def _of_first_states(a: Notes, again: Notes) -> list[Cause]:
    different = _different(a.first, again.first)
    if not different:
        return []
    return [
        Cause(
            "random call at trace time",
            f"two fresh runs begin with other values of {_some(different)}",
            advice="draw them from the key that the model's function gets, not from np.random or random",
        )
    ]


def _of_programs(a: Notes, again: Notes, killed: Notes) -> list[Cause]:
    programs = [*a.programs, *again.programs, *killed.programs]
    if len({program["digest"] for program in programs}) <= 1:
        return []
    other = next(program for program in programs if program["digest"] != programs[0]["digest"])
    line, difference = _first_difference(programs[0]["lines"], other["lines"])
    return [
        Cause(
            "random call at trace time",
            f"two processes trace different programs: {difference}",
            line,
            "draw from the key of the step, `loss(params, batch, key)`; what np.random, random or the clock "
            "return while a function is traced becomes a constant of the program",
        )
    ]


def _first_difference(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> tuple[str, str]:
    for (line, old), (_, new) in zip(a, b, strict=False):
        if old != new:
            return line, f"{old} and {new}"
    return "", f"{len(a)} and {len(b)} operations"


def _of_data(a: Notes, again: Notes, killed: Notes, continued_at: int) -> list[Cause]:
    if difference := _first_batch(a, again):
        number, names = difference
        return [
            Cause(
                "unseeded data",
                f"two fresh runs read other batches, first at step {number}: {_some(names)}",
                advice="give each random generator of the input a seed; mw.data.mapped has the argument rng",
            )
        ]
    begins_again = not a.saved.get("data_position", True)
    difference = _first_batch(a, killed)
    if difference is None and not begins_again:
        return []
    number, names = difference or (continued_at + 1, [])
    begins_again = begins_again or killed.batches.get(continued_at + 1) == a.batches.get(1)
    run = f"the run that continued after step {continued_at} read other batches than one that was not killed"
    how = "the data began again" if begins_again else f"first at step {number}: {_some(names)}"
    return [
        Cause(
            "position of the data",
            f"{run}: {how}",
            advice="save.data_position must be True, and a loader must be continued by its `get_state` and "
            "`set_state`, or give the same items each time that it is read; nothing outside of it may count",
        )
    ]


def _first_batch(a: Notes, b: Notes) -> tuple[int, list[str]] | None:
    for number in sorted(a.batches.keys() & b.batches.keys()):
        if different := _different(a.batches[number], b.batches[number]):
            return number, different
    return None


def _of_step(again: Notes) -> list[Cause]:
    repeated = again.repeated
    if repeated is None or not repeated["different"]:
        return []
    names = _some(repeated["different"])
    result = f"one step, repeated from the same state with the same batch, gives other values of {names}"
    if repeated["calls"]:
        return [
            Cause(
                "state outside",
                f"{result}, and it calls Python functions",
                repeated["calls"][0],
                "such a function must return the same for the same arguments: put what it counts or draws "
                "into the batch or the TrainState",
            )
        ]
    return [
        Cause(
            "nondeterministic kernels",
            result,
            advice="on GPUs, XLA_FLAGS=--xla_gpu_deterministic_ops=true chooses kernels that are not",
        )
    ]


def _of_saving(saved: Mapping[str, Any]) -> list[Cause]:
    settings = {
        "cast": "save.cast saves some arrays in another dtype",
        "names": "save.names leaves arrays out of checkpoints, or renames them",
    }
    return [
        Cause("saved form", effect, advice="save all arrays as they are: leave out this setting")
        for name, effect in settings.items()
        if saved.get(name)
    ]


def _different(a: Digests, b: Digests) -> list[str]:
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")
