"""The times of a run's newest profile, as bars and tables."""

from collections.abc import Sequence
from pathlib import Path

from meshwright.base._internal import milliseconds
from meshwright.errors import InputError
from meshwright.observe._internal import DeviceTimes, Summary, find_profiles, summarize
from meshwright.report._html import Html, tag
from meshwright.report._tables import table

_LARGEST_NBYTES = 16 * 2**20
"""Largest profile to read, at some 12 MB/s: writing the page must not delay the end of a run."""
_NUM_OPS = 12
PARTS = ("computing", "both", "only collectives", "idle")
_MOST_DEVICES = 16


def profile(directory: Path) -> tuple[Html | None, str | None]:
    """Return the section on the newest profile below `directory`, and the error in reading it.

    Either may be None; both are if there is no profile.
    """
    try:
        file = find_profiles(directory)[0]
    except InputError:
        return None, None
    if file.stat().st_size > _LARGEST_NBYTES:
        return None, f"{file.name} is too large for this page: `meshwright trace {directory}` reads it"
    try:
        summary = summarize(file)
    except InputError as error:
        return None, str(error)
    heading = tag("p", _heading(summary, file.parent.name))
    return tag("div", heading, _devices(summary), _operations(summary)), None


def _heading(summary: Summary, window: str) -> str:
    told = [f"{window.replace('_', ' ')}: {len(summary.steps)} steps in {milliseconds(summary.seconds)}"]
    if summary.step_seconds is not None:
        told.append(f"a step takes the devices {milliseconds(summary.step_seconds)}")
    if summary.input_wait_seconds is not None:
        told.append(f"waiting for input {_percent(summary.input_wait_seconds, summary.seconds)} of the time")
    return ", ".join(told)


def _devices(summary: Summary) -> Html:
    shown = summary.devices[:_MOST_DEVICES]
    keys = [tag("span", tag("i", class_=f"key p{i}"), name) for i, name in enumerate(PARTS)]
    shares = {device.name: _shares(device, summary.seconds) for device in shown}
    rows = [[name, _bar(parts), *(f"{part:.1f} %" for part in parts)] for name, parts in shares.items()]
    left_out = f", {len(shown)} of {len(summary.devices)}" if len(shown) < len(summary.devices) else ""
    return table(["device", "", *keys], rows, caption=f"What each device did{left_out}", texts=2)


def _bar(shares: Sequence[float]) -> Html:
    parts = (tag("i", class_=f"p{i}", style=f"width:{share:.2f}%") for i, share in enumerate(shares))
    return tag("span", *parts, class_="bar", aria_hidden="true")


def _shares(device: DeviceTimes, seconds: float) -> Sequence[float]:
    both = device.collective_seconds - device.exposed_seconds
    computing = device.busy_seconds - device.collective_seconds
    parts = (computing, both, device.exposed_seconds, seconds - device.busy_seconds)
    return [100 * max(0.0, part) / seconds if seconds else 0.0 for part in parts]


def _operations(summary: Summary) -> Html | None:
    whole = summary.seconds * len(summary.devices)
    rows = [
        [
            op.name,
            op.collective or "",
            f"{op.count:,}",
            milliseconds(op.seconds / op.count),
            _percent(op.seconds, whole),
        ]
        for op in summary.ops[:_NUM_OPS]
    ]
    if not rows:
        return None
    heads = ["operation", "collective", "runs", "each", "of the devices’ time"]
    return table(heads, rows, caption="The longest operations", texts=2)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
