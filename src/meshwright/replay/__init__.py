"""Runs played again to find out what went wrong: the first NaN, and whether a program can be continued.

`_first_nan` steps on from the newest checkpoint to the first step whose result is not finite, and in that
step to the operation (`program.origin`), the examples (`_rows`) and the devices. `_verify` starts a program
as processes, kills one, and compares; `_child` is such a process, `_findings` judges what they wrote. May
import all rooms below the command line. Add a cause of a difference to `_findings`, and the words for an
operation to `_words`.
"""

from meshwright.replay._child import Orders, play
from meshwright.replay._findings import Cause
from meshwright.replay._first_nan import FirstNan, Made, first_nan
from meshwright.replay._verify import Verified, verify_resume

__all__ = ["Cause", "FirstNan", "Made", "Orders", "Verified", "first_nan", "play", "verify_resume"]
