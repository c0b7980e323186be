"""Runs as text that Prometheus reads: https://prometheus.io/docs/instrumenting/exposition_formats."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_HELP = {
    "meshwright_seconds": "Seconds of the life of a run, by what they were spent on.",
    "meshwright_goodput": "Share of the life of a run that was spent on updates that count, from 0 to 1.",
    "meshwright_attempts": "Attempts of a run so far.",
    "meshwright_failures": "Attempts of a run that were killed or failed.",
    "meshwright_step": "Updates that a run has made and reported.",
    "meshwright_running": "1 while a run goes on, else 0.",
    "meshwright_last_report_timestamp_seconds": "Time of the last report of a run.",
}
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(runs: Sequence[Mapping[str, Any]]) -> str:
    r"""Return runs as metrics in Prometheus' text format, for the collector of text files of a node exporter.

    All of them are gauges: seconds of steps become lost work when a run continues from an earlier step.

    Args:
      runs: The runs, as `list_runs` returns them.

    Example:
      >>> run = {"run": "runs/a", "state": "running", "step": 40, "ledger": None, "last_report": None}
      >>> print(mw.report.prometheus_text([run]))
      # HELP meshwright_step Updates that a run has made and reported.
      # TYPE meshwright_step gauge
      meshwright_step{run="runs/a"} 40
      # HELP meshwright_running 1 while a run goes on, else 0.
      # TYPE meshwright_running gauge
      meshwright_running{run="runs/a"} 1
      <BLANKLINE>
    """
    lines: dict[str, list[str]] = {name: [] for name in _HELP}
    for run in runs:
        for name, labels, value in _samples(run):
            told = ",".join(f'{key}="{str(label).translate(_ESCAPED)}"' for key, label in labels.items())
            lines[name].append(f"{name}{{{told}}} {value!r}")
    heads = {name: [f"# HELP {name} {text}", f"# TYPE {name} gauge"] for name, text in _HELP.items()}
    return "".join(f"{line}\n" for name, found in lines.items() if found for line in heads[name] + found)


def _samples(run: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the name, labels and value of each sample of a run."""
    labels = {"run": run["run"]}
    yield "meshwright_running", labels, int(run["state"] == "running")
    if run.get("step") is not None:
        yield "meshwright_step", labels, run["step"]
    if isinstance(run.get("last_report"), float):
        yield "meshwright_last_report_timestamp_seconds", labels, run["last_report"]
    if ledger := run.get("ledger"):
        for part, seconds in ledger["seconds"].items():
            yield "meshwright_seconds", {**labels, "part": part}, seconds
        yield "meshwright_attempts", labels, ledger["attempts"]
        yield "meshwright_failures", labels, ledger["failures"]
        if ledger["goodput"] is not None:
            yield "meshwright_goodput", labels, ledger["goodput"]
