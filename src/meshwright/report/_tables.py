"""The tables of a page: evaluations, checkpoints, attempts, incidents."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from meshwright.base._internal import description, duration, human_bytes, number
from meshwright.checkpoints._internal import why_aside
from meshwright.report._ending import Incident
from meshwright.report._history import Best
from meshwright.report._html import Html, Part, breakable, tag
from meshwright.report._ledger import PARTS, saving_told, told_seconds
from meshwright.report._run import Run
from meshwright.report._spikes import SpikeSeen
from meshwright.report._words import CHOSEN, CHOSEN_MEANS, date, score_title

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
    values = {name: dict(zip(of.steps, of.values, strict=True)) for name, of in run.scores.items()}
    steps = sorted({step for of in values.values() for step in of}, reverse=True)
    rows = {
        step: [f"{step:,}", *(_score(values[name].get(step), step, run.best.get(name)) for name in names)]
        for step in steps
    }
    heads = ["step", *(score_title(name, run.chosen) for name in names)]
    caption = "Scores by step, the best of each marked"
    caption += f". {CHOSEN} {CHOSEN_MEANS}" if run.chosen else ""
    if len(steps) <= _MOST_ROWS:
        return table(heads, rows.values(), caption=caption)
    kept = {*steps[: _MOST_ROWS // 2], *(best.step for best in run.best.values()), steps[-1]}
    some = table(
        heads,
        [rows[step] for step in steps if step in kept],
        caption=f"{caption}: the newest, best and first",
    )
    whole = table(heads, rows.values(), caption=caption)
    return tag("div", some, tag("details", tag("summary", f"all {len(steps)}"), whole))


def checkpoints(run: Run) -> Html | None:
    """Return the table of the checkpoints that exist, with the scores of their steps."""
    listed = run.checkpoints
    if listed is None or not (listed.checkpoints or listed.set_aside):
        return None
    names = list(run.scores)
    values = {name: dict(zip(of.steps, of.values, strict=True)) for name, of in run.scores.items()}
    heads = [score_title(name, run.chosen) for name in names]
    rows = [
        [
            f"{each.step:,}",
            "damaged" if each.nbytes is None else human_bytes(each.nbytes),
            *(_score(values[name].get(each.step), each.step, run.best.get(name)) for name in names),
            "pinned" if each.pinned else "",
        ]
        for each in reversed(listed.checkpoints)
    ]
    rows += [[name, "set aside", *("" for _ in names), why_aside(name)] for name in listed.set_aside]
    return table(["step", "size", *heads, ""], rows, caption="Existing checkpoints, the newest first")


def spikes(run: Run) -> Html | None:
    """Return the table of the loss spikes before which the run went back; None if there were none."""
    if not run.spikes:
        return None
    rows = [
        [
            f"{each.step:,}",
            each.metric,
            number(each.value),
            number(each.median),
            f"{each.continued_after:,}",
            _range(each.batches),
            _left_out(each),
        ]
        for each in run.spikes
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


def _left_out(spike: SpikeSeen) -> str:
    if spike.examples:
        return breakable(", ".join(map(str, spike.examples)))
    return (
        "" if spike.positions is None else f"positions {_range((spike.positions[0], spike.positions[1] - 1))}"
    )


def time(run: Run) -> Html | None:
    """Return the table of what the time was spent on, over all attempts; None if that is not known."""
    if run.ledger is None or not run.ledger.total:
        return None
    rows = [
        [part, PARTS[part], duration(seconds), f"{100 * share:.1f} %"]
        for part, seconds, share in told_seconds(run.ledger)
    ]
    rows.append(["", "all", duration(run.ledger.total), ""])
    heads = ["", "time spent on", "time", "share"]
    whole = table(heads, rows, caption="Where the time of all attempts went", texts=2)
    saving = saving_told(run.ledger)
    return tag("div", whole, tag("p", f"Saves: {saving}.") if saving else None)


def attempts(run: Run) -> Html | None:
    """Return the table of attempts; None if there was only one."""
    if len(run.attempts) < 2:
        return None
    rows = [
        [
            date(each.started),
            f"{each.first_step:,}",
            f"{each.last_step:,}",
            duration(each.seconds),
            "–" if each.compile_seconds is None else f"{number(each.compile_seconds)} s",
            "; ".join(filter(None, (back, changed))),
        ]
        for each, back, changed in zip(run.attempts, _backs(run), _changes(run), strict=True)
    ]
    heads = ["started", "from step", "to step", "trained", "compiled in", "changes"]
    return table(heads, rows, caption="The run was continued: its attempts, in the order of time", texts=1)


def _backs(run: Run) -> list[str]:
    """Return for each attempt the step that it went back from, as text; "" if it did not go back.

    A return to an earlier step belongs to the first attempt that started after it.
    """
    said = ["" for _ in run.attempts]
    for back in run.backs:
        later = (i for i, each in enumerate(run.attempts) if each.started >= back.time)
        number = next(later, None)
        if number is not None and run.attempts[number].first_step == back.to:
            said[number] = f"went back from step {back.newest:,}"
    return said


def _changes(run: Run) -> list[str]:
    """Return for each attempt the settings that differ from the attempt before, as text; "" if not known."""
    known = [run.settings_from.get(each.first_step) for each in run.attempts]
    said = [""]
    for before, after in itertools.pairwise(known):
        found = [] if before is None or after is None else description.differences(before, after)
        more = f" and {len(found) - _MOST_CHANGES} more" if len(found) > _MOST_CHANGES else ""
        said.append("; ".join(map(str, found[:_MOST_CHANGES])) + more)
    return said


def incidents(run: Run) -> Html | None:
    """Return the table of the newest warnings and errors in the logs."""
    if not run.incidents:
        return None
    of_all = _alike(run.incidents)
    newest = of_all[-_MOST_INCIDENTS:][::-1]
    rows = [
        [first.time, _logs(first, *others), first.level.lower(), _message(first.message, first.details)]
        for first, *others in newest
    ]
    left_out = f", the newest {len(newest)} of {len(of_all)}" if len(newest) < len(of_all) else ""
    return table(
        ["time", "log", "", "message"], rows, caption=f"Warnings and errors in the logs{left_out}", texts=4
    )


def _alike(incidents: Iterable[Incident]) -> list[list[Incident]]:
    """Return incidents in groups: what several processes say one after the other, but for their numbers."""
    found: list[list[Incident]] = []
    for each in incidents:
        before = next((group for group in found[-_MOST_KINDS_AT_ONCE:] if _is_like(group, each)), None)
        if before is None:
            found.append([each])
        else:
            before.append(each)
    return found


def _is_like(group: Sequence[Incident], one: Incident) -> bool:
    said, other = (re.sub(r"process \d+", "process", each.message) for each in (group[0], one))
    return said == other and one.process not in {each.process for each in group}


def _logs(first: Incident, *others: Incident) -> str:
    return f"{first.process} and {len(others)} more" if others else first.process


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
