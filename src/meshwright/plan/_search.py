"""Every mesh that divides, ranked."""

from collections.abc import Sequence

from meshwright.plan._changes import REMATS, Change, meshes_of, tried
from meshwright.plan._site import Site

FINALISTS = 4
"""Meshes of which the other settings are tried, too."""


def search(site: Site) -> list[Change]:
    """Return meshes and settings, the best first: what fits before what does not, then by time.

    Tried are all meshes of data, fsdp and tensor axes with the experiment's own settings, and of the best few
    also other choices of what is kept for the gradient, and other numbers of microbatches. Where none of the
    meshes can be, the experiment's own stands for them. All is estimated from the traced step.

    Raises:
      LayoutError: that cannot be, either. It says why.
    """
    meshes = ranked([*tried(site, ({"mesh": mesh} for mesh in meshes_of(site.hardware)))])
    meshes = meshes or [Change({}, site.plan())]
    others = [
        {**found.settings, "remat": remat, "microbatches": microbatches}
        for found in meshes[:FINALISTS]
        for remat in _remats(site)
        for microbatches in sorted({1, 2, 4, site.experiment.microbatches})
        if (remat, microbatches) != (site.experiment.remat, site.experiment.microbatches)
    ]
    return ranked([*meshes, *tried(site, others)])


def ranked(found: Sequence[Change]) -> list[Change]:
    """Return what fits, the quickest first, and then what does not, the smallest first."""

    def key(change: Change) -> tuple[bool, float]:
        memory = change.plan.memory
        return not memory.fits, change.plan.time.seconds if memory.fits else memory.peak

    return sorted(found, key=key)


def _remats(site: Site) -> Sequence[str | None]:
    return REMATS if site.experiment.remat in REMATS else (site.experiment.remat,)
