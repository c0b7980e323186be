"""`meshwright verify`: check that checkpoints still have the bytes that were written."""

import argparse
import dataclasses

from meshwright.base._internal import human_bytes, screen_width, wrapped
from meshwright.checkpoints._internal import Report, checkpoints_of, verify_all
from meshwright.cli._output import show
from meshwright.cli._train import Result
from meshwright.errors import EXIT_DONE, EXIT_INPUT, printable


def verify(options: argparse.Namespace) -> Result:
    """Compare every byte of each checkpoint with its checksums. Exit code 3 if one is damaged.

    The verdict on each checkpoint is printed as soon as it is known.
    """
    reports = []
    for report in verify_all(checkpoints_of(options.path)):
        reports.append(report)
        if not options.json:
            show(wrapped(_text(report), width=screen_width(), indent="    "))
    num_damaged = sum(bool(report.damage) for report in reports)
    found = {
        "intact": not num_damaged,
        "checkpoints": [{"intact": not each.damage, **dataclasses.asdict(each)} for each in reports],
    }
    whole = "can be read" if any(report.format for report in reports) else "intact"
    text = f"{len(reports) - num_damaged} {whole}, {num_damaged} damaged"
    return text, found, EXIT_INPUT if num_damaged else EXIT_DONE


def _text(report: Report) -> str:
    size = human_bytes(report.nbytes)
    if report.format:
        return _text_of_foreign(report, size)
    checked = f"{report.num_arrays} arrays in {report.num_files} files, {size}, every byte checked"
    if not report.damage:
        return f"✓ {report.checkpoint} is intact: {checked}"
    return "\n".join([f"✗ {report.checkpoint} is damaged: {checked}", *_damage(report)])


def _text_of_foreign(report: Report, size: str) -> str:
    """Return the verdict on a checkpoint of another format. Most of these formats have no checksums."""
    what = f"{report.checkpoint} ({report.format})"
    if report.damage:
        told = (printable(f"  {one.piece or one.file}: {one.found}", keep="") for one in report.damage)
        return "\n".join([f"✗ {what} is damaged", *told])
    return (
        f"✓ {what} can be read: {report.num_arrays} arrays, {size}, all of it read. Changed bytes are found "
        f"only where the format has checksums; `meshwright convert` writes a checkpoint that has them."
    )


def _damage(report: Report) -> list[str]:
    return [f"  {printable(str(one), keep='')}" for one in report.damage]
