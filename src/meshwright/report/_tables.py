"""The tables of a page: evaluations, checkpoints, attempts, incidents, and times of the newest profile."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from meshwright.base._internal import description, duration, human_bytes, milliseconds, number
from meshwright.checkpoints._internal import reason_set_aside
from meshwright.errors import InputError
from meshwright.observe._internal import DeviceTimes, Summary, find_profiles, summarize
from meshwright.report._history import Best
from meshwright.report._html import Html, Part, breakable, tag
from meshwright.report._ledger import PARTS, saving_advice, spent_seconds
from meshwright.report._records import Incident, Spike
from meshwright.report._run import Run
from meshwright.report._words import CHOSEN, CHOSEN_LEGEND, date, score_title

_MOST_ROWS = 24
_MOST_INCIDENTS = 40
_MOST_KINDS_AT_ONCE = 3
"""The number of kinds of messages that processes log at the same time."""
_MOST_CHANGES = 5


def table(heads: Sequence[Part], rows: Iterable[Sequence[Part]], *, caption: str, texts: int = 0) -> Html:
    """Return a table. The first `texts` columns hold text; the others hold numbers and are right-aligned."""
    kinds = ["text" if i < texts else "number" for i in range(len(heads))]
    head = tag("tr", *(tag("th", x, scope="col", class_=kind) for x, kind in zip(heads, kinds, strict=True)))
    body = (
        tag("tr", *(tag("td", x, class_=kind) for x, kind in zip(row, kinds, strict=True))) for row in rows
    )
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def evaluations(run: Run) -> Html | None:
    """Return the table of scores by step, the newest first, with the best of each marked."""
    names = list(run.scores)
    if not names:
        return None
    values = {
        name: dict(zip(points.steps, points.values, strict=True)) for name, points in run.scores.items()
    }
    steps = sorted({step for points in values.values() for step in points}, reverse=True)
    rows = {
        step: [f"{step:,}", *(_score(values[name].get(step), step, run.best.get(name)) for name in names)]
        for step in steps
    }
    heads = ["step", *(score_title(name, run.chosen) for name in names)]
    caption = "Scores by step, the best of each marked"
    caption += f". {CHOSEN} {CHOSEN_LEGEND}" if run.chosen else ""
    if len(steps) <= _MOST_ROWS:
        return table(heads, rows.values(), caption=caption)
    shown_steps = {*steps[: _MOST_ROWS // 2], *(best.step for best in run.best.values()), steps[-1]}
    some = table(
        heads,
        [rows[step] for step in steps if step in shown_steps],
        caption=f"{caption}: the newest, best and first",
    )
    # All rows are there, folded.
    whole = table(heads, rows.values(), caption=caption)
    return tag("div", some, tag("details", tag("summary", f"all {len(steps)}"), whole))


def checkpoints(run: Run) -> Html | None:
    """Return the table of the checkpoints that exist, with the scores of their steps."""
    listed = run.checkpoints
    if listed is None or not (listed.checkpoints or listed.set_aside):
        return None
    names = list(run.scores)
    values = {
        name: dict(zip(points.steps, points.values, strict=True)) for name, points in run.scores.items()
    }
    heads = [score_title(name, run.chosen) for name in names]
    rows = [
        [
            f"{checkpoint.step:,}",
            "damaged" if checkpoint.nbytes is None else human_bytes(checkpoint.nbytes),
            *(
                _score(values[name].get(checkpoint.step), checkpoint.step, run.best.get(name))
                for name in names
            ),
            "pinned" if checkpoint.pinned else "",
        ]
        for checkpoint in reversed(listed.checkpoints)
    ]
    rows += [[name, "set aside", *("" for _ in names), reason_set_aside(name)] for name in listed.set_aside]
    return table(["step", "size", *heads, ""], rows, caption="Existing checkpoints, the newest first")


def spikes(run: Run) -> Html | None:
    """Return the table of the loss spikes before which the run went back; None if there were none."""
    if not run.spikes:
        return None
    rows = [
        [
            f"{spike.step:,}",
            spike.metric,
            number(spike.value),
            number(spike.median),
            f"{spike.continued_after:,}",
            _range(spike.batches),
            _left_out(spike),
        ]
        for spike in run.spikes
    ]
    heads = [
        "step",
        "metric",
        "value",
        "median before",
        "went back to",
        "batches left out",
        "examples left out",
    ]
    return table(heads, rows, caption="Loss spikes, in the order in which they were seen")


def _range(numbers: tuple[int, int]) -> str:
    first, last = numbers
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _left_out(spike: Spike) -> str:
    if spike.examples:
        return breakable(", ".join(map(str, spike.examples)))
    return (
        "" if spike.positions is None else f"positions {_range((spike.positions[0], spike.positions[1] - 1))}"
    )


def time(run: Run) -> Html | None:
    """Return the table of how all attempts spent their time; None if unknown."""
    if run.ledger is None or not run.ledger.total:
        return None
    rows = [
        [part, PARTS[part], duration(seconds), f"{100 * share:.1f} %"]
        for part, seconds, share in spent_seconds(run.ledger)
    ]
    rows.append(["", "all", duration(run.ledger.total), ""])
    heads = ["", "time spent on", "time", "share"]
    whole = table(heads, rows, caption="Where the time of all attempts went", texts=2)
    saving = saving_advice(run.ledger)
    return tag("div", whole, tag("p", f"Saves: {saving}.") if saving else None)


def attempts(run: Run) -> Html | None:
    """Return the table of attempts; None if there was only one."""
    if len(run.attempts) < 2:
        return None
    rows = [
        [
            date(attempt.started),
            f"{attempt.first_step:,}",
            f"{attempt.last_step:,}",
            duration(attempt.seconds),
            "–" if attempt.compile_seconds is None else f"{number(attempt.compile_seconds)} s",
            "; ".join(filter(None, (back, changed))),
        ]
        for attempt, back, changed in zip(run.attempts, _backs(run), _changes(run), strict=True)
    ]
    heads = ["started", "from step", "to step", "trained", "compiled in", "changes"]
    return table(heads, rows, caption="The run was continued: its attempts, in the order of time", texts=1)


def _backs(run: Run) -> list[str]:
    """Return for each attempt the step that it went back from, as text; "" if it did not go back.

    A return to an earlier step belongs to the first attempt that started after it.
    """
    texts = ["" for _ in run.attempts]
    for back in run.backs:
        later = (i for i, attempt in enumerate(run.attempts) if attempt.started >= back.time)
        number = next(later, None)
        if number is not None and run.attempts[number].first_step == back.to:
            texts[number] = f"went back from step {back.newest:,}"
    return texts


def _changes(run: Run) -> list[str]:
    """Return for each attempt the settings that differ from the attempt before, as text; "" if not known."""
    settings = [run.settings_from.get(attempt.first_step) for attempt in run.attempts]
    texts = [""]
    for previous, current in itertools.pairwise(settings):
        changes = [] if previous is None or current is None else description.differences(previous, current)
        more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
        texts.append("; ".join(map(str, changes[:_MOST_CHANGES])) + more)
    return texts


def incidents(run: Run) -> Html | None:
    """Return the table of the newest warnings and errors in the logs."""
    if not run.incidents:
        return None
    of_all = _alike(run.incidents)
    newest = of_all[-_MOST_INCIDENTS:][::-1]
    rows = [
        [
            first.time,
            f"{first.process} and {len(others)} more" if others else first.process,
            first.level.lower(),
            _message(first.message, first.details),
        ]
        for first, *others in newest
    ]
    left_out = f", the newest {len(newest)} of {len(of_all)}" if len(newest) < len(of_all) else ""
    return table(
        ["time", "log", "", "message"], rows, caption=f"Warnings and errors in the logs{left_out}", texts=4
    )


def _alike(incidents: Iterable[Incident]) -> list[list[Incident]]:
    """Return incidents in groups: messages that several processes log one after the other, alike but for
    numbers.
    """
    groups: list[list[Incident]] = []
    for incident in incidents:
        like = next((group for group in groups[-_MOST_KINDS_AT_ONCE:] if _is_like(group, incident)), None)
        if like is None:
            groups.append([incident])
        else:
            like.append(incident)
    return groups


def _is_like(group: Sequence[Incident], incident: Incident) -> bool:
    first_text, text = (re.sub(r"process \d+", "process", member.message) for member in (group[0], incident))
    return first_text == text and incident.process not in {member.process for member in group}


def _message(message: str, details: str) -> Part:
    if not details:
        return message
    return tag("details", tag("summary", message), tag("pre", details))


def _score(value: float | None, step: int, best: Best | None) -> Part:
    if value is None:
        return ""
    if best is not None and step == best.step:
        return best_number(value)
    return tag("span", number(value), class_=None if math.isfinite(value) else "alarm")


def best_number(value: float) -> Html:
    """Return a number marked as the best."""
    return tag("strong", tag("span", "best ", class_="mark"), number(value))


def two_columns(pairs: Mapping[str, Part]) -> Html:
    """Return a list of names with their values, in as many columns as fit."""
    rows = (tag("div", tag("dt", breakable(name)), tag("dd", value)) for name, value in pairs.items())
    return tag("dl", *rows, class_="pairs")


_LARGEST_NBYTES = 16 * 2**20
"""Largest profile to read, at some 12 MB/s: writing the page must not delay the end of a run."""
_NUM_OPS = 12
DEVICE_PARTS = ("computing", "both", "only collectives", "idle")
_MOST_DEVICES = 16


def profile(directory: Path) -> tuple[Html | None, str | None]:
    """Return the section on the newest profile below `directory`, and the error in reading it.

    Either may be None; both are if there is no profile.
    """
    try:
        file = find_profiles(directory)[0]
    except InputError:
        return None, None
    # The page is also written at the end of a run, which must not wait for it.
    if file.stat().st_size > _LARGEST_NBYTES:
        return None, f"{file.name} is too large for this page: `meshwright trace {directory}` reads it"
    try:
        summary = summarize(file)
    except InputError as error:
        return None, str(error)
    heading = tag("p", _heading(summary, file.parent.name))
    return tag("div", heading, _devices(summary), _operations(summary)), None


def _heading(summary: Summary, window: str) -> str:
    facts = [f"{window.replace('_', ' ')}: {len(summary.steps)} steps in {milliseconds(summary.seconds)}"]
    if summary.step_seconds is not None:
        facts.append(f"a step takes the devices {milliseconds(summary.step_seconds)}")
    if summary.input_wait_seconds is not None:
        facts.append(f"waiting for input {_percent(summary.input_wait_seconds, summary.seconds)} of the time")
    return ", ".join(facts)


def _devices(summary: Summary) -> Html:
    devices = summary.devices[:_MOST_DEVICES]
    keys = [tag("span", tag("i", class_=f"key p{i}"), name) for i, name in enumerate(DEVICE_PARTS)]
    shares = {device.name: _shares(device, summary.seconds) for device in devices}
    rows = [[name, _bar(parts), *(f"{part:.1f} %" for part in parts)] for name, parts in shares.items()]
    left_out = f", {len(devices)} of {len(summary.devices)}" if len(devices) < len(summary.devices) else ""
    return table(["device", "", *keys], rows, caption=f"What each device did{left_out}", texts=2)


def _bar(shares: Sequence[float]) -> Html:
    parts = (tag("i", class_=f"p{i}", style=f"width:{share:.2f}%") for i, share in enumerate(shares))
    return tag("span", *parts, class_="bar", aria_hidden="true")


def _shares(device: DeviceTimes, seconds: float) -> Sequence[float]:
    hidden = device.collective_seconds - device.exposed_seconds
    computing = device.busy_seconds - device.collective_seconds
    parts = (computing, hidden, device.exposed_seconds, seconds - device.busy_seconds)
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
