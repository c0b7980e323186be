"""Whether a thread waits for its devices or for other processes."""

import os
import sysconfig
from pathlib import Path
from types import FrameType

import jax

from meshwright import processes

_JAX = f"{Path(jax.__file__).parent}{os.sep}"
_PROCESSES = Path(processes.__file__).parent
_READERS = {"_heartbeat.py", "_sensors.py", "_slow.py", "_verdict.py"}
"""Files of `processes` that look at other processes, and do not wait for them."""
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
_OTHERS = f"{_PYTHON}site-packages"


def is_waiting(frame: FrameType | None) -> bool:
    """Return whether a thread is in JAX or in `meshwright.processes`, and not in user code."""
    while frame and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file.startswith(_JAX) or (Path(file).parent == _PROCESSES and Path(file).name not in _READERS)


def _is_pythons(path: str) -> bool:
    return path.startswith(("<frozen", _PYTHON)) and not path.startswith(_OTHERS)
