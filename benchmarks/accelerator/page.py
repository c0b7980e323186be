"""The page of a measurement: what `__main__` found, as tables in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

Case = Mapping[str, Any]


def page(found: Mapping[str, Any]) -> str:
    """Return the page of what was found so far."""
    cases, device = found["cases"], {}
    for case in cases:
        if case["name"] == "device":
            device = case.get("found", {})
    heading = [
        "# Measured on an accelerator" + (", with tiny sizes" if found["tiny"] else ""),
        f"{found['date']}, {device.get('count', '?')} × {device.get('kind', '?')}, "
        f"jax {device.get('jax', '?')}, meshwright {device.get('meshwright', '?')}. "
        "`make bench-accelerator` repeats it.",
    ]
    parts = [*heading, *(of(cases) for of in (steps, attention, loss, generation, others, profile, missing))]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_name(cases: Sequence[Case], name: str) -> list[Case]:
    return [case for case in cases if case["name"] == name and "found" in case]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gib(nbytes: float | None) -> str:
    return "–" if nbytes is None else f"{nbytes / 2**30:.3g}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def steps(cases: Sequence[Case]) -> str:
    heads = ["step", "ms", "tokens/s a device", "MFU", "peak GiB", "compiled GiB"]
    rows = []
    for case in of_name(cases, "step"):
        (size, length, remat), one = case["arguments"], case["found"]
        rows.append(
            [
                f"{size}, {one['batch_size']} × {length:,}, keeps {remat}",
                f"{1e3 * one['seconds']:.1f}",
                f"{one['tokens_per_second_and_device']:,.0f}",
                percent(one.get("mfu")),
                gib(one["peak_bytes"]),
                gib(one["compiled_bytes"]),
                f"{1e3 * one['planned_seconds']:.1f} ({one['planned_seconds'] / one['seconds']:.2f} ×)",
                f"{gib(one['planned_bytes'])} ({one['planned_bytes'] / one['compiled_bytes']:.2f} ×)",
            ]
        )
    heads += ["planned ms", "planned GiB"]
    return "## Steps, and what a plan says of them\n\n" + table(heads, rows) if rows else ""


def attention(cases: Sequence[Case]) -> str:
    rows = [
        [
            f"{' × '.join(map(str, one['shape']))}, {one['form']}",
            f"{one['ms']:.2f}",
            percent(one["share_of_peak"]),
            gib(one["temporary_bytes"]),
        ]
        for case in of_name(cases, "attention")
        for one in case["found"]
    ]
    heads = ["rows × tokens × heads × heads of keys × head size", "ms", "share of peak", "temporary GiB"]
    return "## Causal attention, forward and gradient\n\n" + table(heads, rows) if rows else ""


def loss(cases: Sequence[Case]) -> str:
    rows = [
        [
            " × ".join(map(str, one["shape"])),
            f"{one['ms']:.2f}",
            percent(one["share_of_peak"]),
            gib(one["temporary_bytes"]),
            gib(one["logits_bytes"]),
        ]
        for case in of_name(cases, "loss")
        for one in case["found"]
    ]
    heads = ["rows × tokens × features × vocabulary", "ms", "share of peak", "temporary GiB", "logits GiB"]
    return "## The loss and its gradient\n\n" + table(heads, rows) if rows else ""


def generation(cases: Sequence[Case]) -> str:
    rows = [
        [
            str(one["rows"]),
            f"{1e3 * one['rows'] / one['ms']:,.0f}",
            f"{one['ms']:.3f}",
            f"{one['reading_ms']:.3f} ({one['weights_bytes'] / one['reading_ms'] / 1e6:,.0f} GB/s)",
            f"{one['ms'] / one['reading_ms']:.2f} ×",
        ]
        for case in of_name(cases, "generation")
        for one in case["found"]
    ]
    heads = ["rows", "tokens/s", "ms a token of each row", "reading all weights, ms", "ratio"]
    return "## Greedy generation\n\n" + table(heads, rows) if rows else ""


def others(cases: Sequence[Case]) -> str:
    rows = [
        row for name, row_of in ROWS.items() for case in of_name(cases, name) for row in row_of(case["found"])
    ]
    return "## Loop, checkpoints and input\n\n" + table(["", "measured"], rows) if rows else ""


def _checkpoint(one: Mapping[str, Any]) -> list[list[str]]:
    gigabytes = one["nbytes"] / 1e9
    return [
        [f"a save of {gigabytes:.2f} GB blocks the loop, s", f"{one['blocked_seconds']:.3f}"],
        ["until it is on the disk, GB/s", f"{gigabytes / one['saved_seconds']:.2f}"],
        ["restored to the devices, GB/s", f"{gigabytes / one['restored_seconds']:.2f}"],
        ["restored equal to the bit", "yes" if one["equal"] else "NO"],
    ]


def _loop(one: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["a step in a bare loop, ms", f"{one['bare_ms']:.3f}"],
        ["in `mw.run`, ms", f"{one['run_ms']:.3f} ({one['run_ms'] / one['bare_ms']:.3f} ×)"],
    ]


def _input(one: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["examples read, collated and trained on, per second", f"{one['examples_per_second']:,.0f}"],
        ["their bytes, GB/s", f"{one['bytes_per_second'] / 1e9:.2f}"],
        ["the share of the time in which a step waits for them", percent(one["input_wait"])],
    ]


ROWS = {"loop": _loop, "checkpoint": _checkpoint, "input": _input}


def profile(cases: Sequence[Case]) -> str:
    texts = [case["found"]["text"] for case in of_name(cases, "profile")]
    return "## Where the time of a step goes\n\n```\n" + texts[0] + "\n```" if texts else ""


def missing(cases: Sequence[Case]) -> str:
    rows = [
        [f"{case['name']} {' '.join(map(str, case['arguments']))}", case["error"].replace("|", "/")]
        for case in cases
        if "error" in case
    ]
    return "## Not measured\n\n" + table(["case", "why"], rows) if rows else ""
