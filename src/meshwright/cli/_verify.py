"""`meshwright verify`: check that checkpoints still have the bytes that were written."""

import argparse

from meshwright.base import _internal as base
from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._parser import Commands, Result
from meshwright.cli._process import show
from meshwright.errors import EXIT_DONE, EXIT_INPUT, printable


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "verify",
        verify,
    )
    command.add_argument(
        "path", metavar="PATH", help="a checkpoint, or a run or directory to check all its checkpoints"
    )


def verify(options: argparse.Namespace) -> Result:
    """Compare every byte of each checkpoint with its checksums. Exit code 3 if one is damaged.

    The verdict on each checkpoint is printed as soon as it is known.
    """
    import dataclasses

    reports = []
    for report in checkpoints.verify_all(checkpoints.checkpoints_of(options.path)):
        reports.append(report)
        if not options.json:
            show(base.wrapped(_text(report), width=base.screen_width(), indent="    "))
    num_damaged = sum(bool(report.damage) for report in reports)
    document = {
        "intact": not num_damaged,
        "checkpoints": [{"intact": not report.damage, **dataclasses.asdict(report)} for report in reports],
    }
    whole = "can be read" if any(report.format for report in reports) else "intact"
    text = f"{len(reports) - num_damaged} {whole}, {num_damaged} damaged"
    return text, document, EXIT_INPUT if num_damaged else EXIT_DONE


def _text(report: "checkpoints.Report") -> str:
    size = base.human_bytes(report.nbytes)
    if report.format:
        return _text_of_foreign(report, size)
    checked = f"{report.num_arrays} arrays in {report.num_files} files, {size}, every byte checked"
    if not report.damage:
        return f"✓ {report.checkpoint} is intact: {checked}"
    lines = (printable(f"  {damage}", keep="") for damage in report.damage)
    return "\n".join([f"✗ {report.checkpoint} is damaged: {checked}", *lines])


def _text_of_foreign(report: "checkpoints.Report", size: str) -> str:
    """Return the verdict on a checkpoint of another format. Most of these formats have no checksums."""
    what = f"{report.checkpoint} ({report.format})"
    if report.damage:
        lines = (
            printable(f"  {damage.piece or damage.file}: {damage.found}", keep="") for damage in report.damage
        )
        return "\n".join([f"✗ {what} is damaged", *lines])
    return (
        f"✓ {what} can be read: {report.num_arrays} arrays, {size}, all of it read. Changed bytes are found "
        f"only where the format has checksums; `meshwright convert` writes a checkpoint that has them."
    )
