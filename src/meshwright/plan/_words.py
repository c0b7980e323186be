"""A plan as text for people."""

from collections.abc import Iterable, Sequence

from meshwright.base._internal import aligned, human_bytes, mesh_words, seconds_text
from meshwright.plan._changes import Change
from meshwright.plan._values import Exchange, Memory, Plan
from meshwright.training._internal import OneForwardOneBackward, Ring

COLUMN = 24
NUM_SHOWN = 10
"""Most rows shown of a search."""


def described(plan: Plan) -> str:
    """Return a plan as text for people."""
    sections = [
        _heading(plan),
        _memory(plan.memory),
        _network(plan.exchanges),
        _time(plan),
        [] if plan.pipeline is None else _pipeline(plan.pipeline),
        _checkpoint(plan),
    ]
    return "\n\n".join(["\n".join(lines) for lines in [*sections, [*plan.notes]] if lines])


def described_changes(changes: Sequence[Change]) -> str:
    """Return the changes that make a step fit as a table, the quickest first."""
    if not changes:
        return "No one or two changes make it fit: use more devices, or a smaller batch or model."
    return "\n".join(
        ["Changes that make it fit, the quickest first (estimated from the traced step):", *_table(changes)]
    )


def described_search(changes: Sequence[Change]) -> str:
    """Return the best results of a search as a table."""
    best = changes[:NUM_SHOWN]
    how = "compiled where it says so, others estimated" if any(map(_is_compiled, changes)) else "estimated"
    head = f"the best {len(best)} of {len(changes)} tried ({how} from the traced step):"
    return "\n".join([head, *_table(best)])


def _heading(plan: Plan) -> list[str]:
    took, memory = seconds_text(plan.planning_seconds), human_bytes(plan.planning_bytes)
    settings = " · ".join(f"{name} {value}" for name, value in plan.settings.items() if value is not None)
    how = "compiled for it" if plan.compiled else "estimated from the traced step"
    return [
        f"{plan.hardware} · {plan.num_devices} devices · mesh {mesh_words(plan.mesh)}",
        f"{plan.num_params:,} parameters · {settings}",
        f"{how} in {took}, with {memory} of memory here",
    ]


def _memory(memory: Memory) -> list[str]:
    parts = {
        "parameters": human_bytes(memory.params),
        "optimizer": human_bytes(memory.optimizer),
        "gradients": human_bytes(memory.gradients) if memory.gradients else "none yet",
        "batch": human_bytes(memory.batch),
        "activations and others": human_bytes(memory.temporary + memory.other_state),
    }
    verdict = "fits" if memory.fits else "does NOT fit"
    verdict += ", the compiler says" if memory.refused else ""
    return [
        "Memory of one device at its peak",
        *(f"  {name:<{COLUMN}}{amount:>10}" for name, amount in parts.items()),
        f"  {'peak':<{COLUMN}}{human_bytes(memory.peak):>10}  of {human_bytes(memory.available)}: {verdict}",
    ]


def _network(exchanges: Iterable[Exchange]) -> list[str]:
    rows = [
        f"  {exchange.kind:<{COLUMN}}{human_bytes(exchange.sent_bytes):>10}  in {exchange.times} over "
        f"{'+'.join(exchange.axes)}{', between hosts' if exchange.crosses_groups else ''}"
        for exchange in exchanges
    ]
    return ["Sent by one device in a step, by mesh axes", *rows] if rows else ["No device sends anything."]


def _time(plan: Plan) -> list[str]:
    time = plan.time
    network = ", ".join(f"{'+'.join(axes)} {seconds_text(seconds)}" for axes, seconds in time.network.items())
    mfu = "" if plan.mfu is None else f", model FLOPs utilisation {plan.mfu:.0%}"
    again = plan.hardware_flops / plan.model_flops - 1 if plan.model_flops else 0.0
    behind = f"  of {network}" if network else ""
    return [
        f"A step takes {seconds_text(time.seconds)}{mfu}",
        f"  {'products':<{COLUMN}}{seconds_text(time.compute):>10}  {plan.model_flops:.3g} FLOP"
        + (f", {again:.0%} computed twice" if again else ""),
        f"  {'memory':<{COLUMN}}{seconds_text(time.memory):>10}"
        + (
            f"  of which {seconds_text(time.hidden_memory)} beside the products" if time.hidden_memory else ""
        ),
        f"  {'network, not hidden':<{COLUMN}}{seconds_text(time.exposed):>10}{behind}",
        *(
            [f"  {'to and from the host':<{COLUMN}}{seconds_text(time.host):>10}  not hidden"]
            if time.host
            else []
        ),
        f"  assuming {plan.assumptions}",
    ]


def _pipeline(schedule: Ring | OneForwardOneBackward) -> list[str]:
    if isinstance(schedule, Ring):
        how, inputs = f" in {schedule.rounds} rounds" if schedule.rounds > 1 else "", []
        ticks = f"{schedule.ticks} ticks"
    else:
        inputs = [f"  of which a stage keeps the inputs of {schedule.in_flight} at most"]
        how, ticks = " by 1F1B", f"{schedule.ticks} ticks forward and as many back (')"
    head = (
        f"A pipeline of {schedule.stages} stages: {schedule.microbatches} microbatches{how} take {ticks}, in "
        f"{schedule.idle_share:.0%} of which a device idles"
    )
    return [head, *inputs, *(f"  stage {stage:<4}{line}" for stage, line in enumerate(schedule.drawn()))]


def _checkpoint(plan: Plan) -> list[str]:
    cost = plan.checkpoint
    per_host = f"{human_bytes(cost.host_nbytes)} per host: {seconds_text(cost.seconds)}"
    return [f"A checkpoint is {human_bytes(cost.nbytes)}, {per_host} at {cost.bandwidth / 1e9:.3g} GB/s"]


def _table(changes: Iterable[Change]) -> list[str]:
    rows = [
        (
            str(change),
            human_bytes(change.plan.memory.peak),
            seconds_text(change.plan.time.seconds),
            _mfu(change.plan),
        )
        for change in changes
    ]
    return aligned(rows, right=(1, 2), indent="  ")


def _mfu(plan: Plan) -> str:
    fits = "" if plan.memory.fits else "  does not fit"
    compiled = "  compiled" if plan.compiled else ""
    return ("" if plan.mfu is None else f"MFU {plan.mfu:>3.0%}") + compiled + fits


def _is_compiled(change: Change) -> bool:
    return change.plan.compiled
