"""`meshwright diff`: compare two checkpoints array by array."""

import argparse
import math
from typing import Any

from meshwright.base import _internal as base
from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._checkpoint import add_step
from meshwright.cli._parser import Commands, Result
from meshwright.errors import EXIT_DONE, printable

EXIT_DIFFERENT = 1


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("diff", diff)
    command.add_argument("a", metavar="A", help="a run, or a checkpoint of any format")
    command.add_argument("b", metavar="B", help="the run or checkpoint to compare it with")
    add_step(command, "compare")


def diff(options: argparse.Namespace) -> Result:
    """Compare the arrays of two checkpoints. As with Unix `diff`, exit code 1 means that they differ."""
    a, b = (
        checkpoints.open_source(checkpoints.checkpoints_of(path), step=options.step)
        for path in (options.a, options.b)
    )
    differences = checkpoints.diff(a, b)
    num_equal = len(a.arrays()) - sum(difference.a is not None for difference in differences)
    document = {
        "a": str(a),
        "b": str(b),
        "equal": num_equal,
        "different": {difference.name: _document(difference) for difference in differences},
    }
    width = base.screen_width()
    rows = (base.wrapped(_line(difference), width=width, indent="    ") for difference in differences)
    lines = [f"a  {a}", f"b  {b}", "", *rows]
    lines.append(f"{num_equal} arrays are equal, {len(differences)} are not")
    return "\n".join(lines), document, EXIT_DIFFERENT if differences else EXIT_DONE


def _document(difference: "checkpoints.Difference") -> dict[str, Any]:
    largest = difference.largest
    return {
        "a": _described(difference.a),
        "b": _described(difference.b),
        "num_differing": difference.num_differing,
        # JSON has no infinity and no NaN.
        "largest": largest if largest is None or math.isfinite(largest) else str(largest),
    }


def _line(difference: "checkpoints.Difference") -> str:
    a, b = _described(difference.a), _described(difference.b)
    types = a if a == b else f"{a} in a, {b} in b"
    name = printable(difference.name, keep="")
    if difference.num_differing is None:
        return f"  {name}: {types}"
    size = math.prod(difference.a.shape) if difference.a else 0
    values = f"{difference.num_differing} of {size} differ, by {difference.largest:.4g} at most"
    return f"  {name}: {types}: {values}"


def _described(array: "checkpoints.LazyArray | None") -> str:
    if array is None:
        return "nothing"
    return f"{array.dtype.name} {' × '.join(map(str, array.shape)) or 'scalar'}"
