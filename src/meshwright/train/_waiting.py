"""Whether a thread waits for its devices or for other processes."""

import os
import sysconfig
from pathlib import Path
from types import FrameType

import jax

from meshwright import process

_WAITING = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (jax, process))
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
_OTHERS = f"{_PYTHON}site-packages"


def is_waiting(frame: FrameType | None) -> bool:
    """Return whether a thread is in JAX or in `meshwright.process`, and not in user code."""
    while frame and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_WAITING)


def _is_pythons(path: str) -> bool:
    return path.startswith(("<frozen", _PYTHON)) and not path.startswith(_OTHERS)
