"""`meshwright verify`: whether a checkpoint still is what was written."""

import argparse
import dataclasses

from meshwright.checkpoint import Report
from meshwright.checkpoint import verify as verify_checkpoint
from meshwright.cli._inspect import checkpoints_of
from meshwright.cli._train import Result
from meshwright.errors import EXIT_DONE, EXIT_INPUT
from meshwright.sharding import human_bytes


def verify(options: argparse.Namespace) -> Result:
    """Compare all of a checkpoint with its checksums; damage makes the exit code 3."""
    report = verify_checkpoint(checkpoints_of(options.path))
    found = {"intact": not report.damage, **dataclasses.asdict(report)}
    return _text(report), found, EXIT_INPUT if report.damage else EXIT_DONE


def _text(report: Report) -> str:
    size = human_bytes(report.nbytes)
    checked = f"{report.num_arrays} arrays in {report.num_files} files, {size}, every byte checked"
    if not report.damage:
        return f"✓ {report.checkpoint} is intact: {checked}"
    return "\n".join([f"✗ {report.checkpoint} is damaged: {checked}", *(f"  {one}" for one in report.damage)])
