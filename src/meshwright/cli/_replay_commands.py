"""The options of the commands that play a run or a program again: `nan` and `verify-resume`."""

import argparse

from meshwright.cli._parser import Commands


def add_replay(commands: Commands) -> None:
    """Add the commands."""
    nan = commands.with_settings(
        "nan",
        "_nan",
        "Find the first value of a run that is not finite: step, operation, line, layer, examples, device. "
        "Exit code 4 if there is one.",
    )
    nan.add_argument("path", metavar="RUN", help="the directory or URL of the run, which is not changed")
    nan.add_argument(
        "target",
        metavar="module:function",
        nargs="?",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
    nan.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the last step to play (default: the last one that the run reported)",
    )
    nan.add_argument("--to", metavar="DIR", help="the directory for the batch (default: RUN/nan)")
    verify = commands.with_settings(
        "verify-resume",
        "_verify_resume",
        "Run an experiment for some steps, kill it by SIGKILL, continue it, and compare all to the bit with "
        "a run that was not killed. Exit code 1 if they differ; the cause is named.",
    )
    verify.add_argument(
        "target", metavar="module:function", help="the function that returns the experiment: gpt:experiment"
    )
    verify.add_argument("--steps", type=int, default=12, metavar="N", help="the steps to run (default: 12)")
    verify.add_argument(
        "--seed", type=int, default=0, metavar="N", help="chooses the step of the kill (default: 0)"
    )
    verify.add_argument("--child", metavar="JSON", help=argparse.SUPPRESS)  # see cli/_verify_resume.py
