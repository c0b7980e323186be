"""When the scheduler ends the job that this process is a part of, where it says so beforehand."""

import os
from collections.abc import Mapping

from meshwright.process._cluster import integer

_VARIABLE = "SLURM_JOB_END_TIME"
"""Seconds since 1970: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES. Not all
versions set it. It is as the job began: who changes the time limit later does not change it."""


def job_end(environ: Mapping[str, str] = os.environ) -> tuple[str, str, float] | None:
    """Return the scheduler, the variable that tells it, and when it ends the job, in seconds since 1970.

    None where nobody says.

    Raises:
      UsageError: the variable holds no number.
    """
    if not environ.get("SLURM_JOB_ID"):
        return None
    end = integer(environ, _VARIABLE)
    return None if end is None else ("SLURM", _VARIABLE, float(end))
