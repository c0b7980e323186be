"""The time of exchanges between devices by the mesh axes that they go over."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshwright.observe._profile._programs import groups_in
from meshwright.observe._profile._summary import Summary
from meshwright.program._internal import axes_written


def exchange_seconds(summary: Summary, sizes: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return the seconds of all collectives of a profile by mesh axes, over all devices, the longest first.

    Collectives whose axes the profile does not tell, or that are not of this mesh, are under no axes: ().
    """
    groups = groups_in(Path(summary.file))
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for op in summary.ops:
        if op.collective is None:
            continue
        axes: tuple[str, ...] = ()
        with suppress(ValueError, KeyError):
            axes = axes_written(groups[op.module][op.name], sizes)
        seconds[axes] += op.seconds
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))
