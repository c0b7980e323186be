"""The usual learning rate schedules, as functions of the step, built from the schedules of optax.

T is the number of all steps, W is the number of warm-up steps, and D is the number of decay steps at the end
of a warmup_stable_decay schedule. A step s is an *update of the optimizer*, counted from 0. Microbatches are
not steps.

    s < W, all shapes    init + (peak - init) s / W                                arXiv:1706.02677, 2.2
    linear               peak + (end - peak) (s - W) / (T - W)                     arXiv:1810.04805, A.2
    cosine               end + (peak - end) (1 + cos(pi (s - W) / (T - W))) / 2    arXiv:1608.03983, eq. 5
    constant             peak
    inverse_sqrt         peak sqrt(W / s)                                          arXiv:1706.03762, 5.3
    warmup_stable_decay  peak, and from step T - D on
                         peak + (end - peak) (s - T + D) / D                       arXiv:2405.18392, 3

A schedule that reaches `end` at step T stays there afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from meshwright.errors import UsageError, did_you_mean

_OWN_OPTIONS = {
    "linear": ("end",),
    "cosine": ("end",),
    "constant": (),
    "inverse_sqrt": (),
    "warmup_stable_decay": ("end", "decay_steps"),
}
"""The kinds of schedules, each with its arguments that not all kinds have."""


def schedule(
    kind: str | optax.Schedule,
    *,
    peak: float | None = None,
    max_steps: int | None = None,
    warmup_steps: int | None = None,
    warmup_ratio: float | None = None,
    decay_steps: int | None = None,
    init: float | None = None,
    end: float | None = None,
) -> optax.Schedule:
    """Return the learning rate as a pure function of the step, which is an int or an integer array.

    Args:
      kind: The kind of the schedule: "linear", "cosine", "constant", "inverse_sqrt" or "warmup_stable_decay".
        A function of the step is returned unchanged, and the other arguments are ignored.
      peak: The learning rate at the end of the warm-up. All kinds need it.
      max_steps: The number of all steps (T). All kinds need it.
      warmup_steps: The number of warm-up steps (W). By default there is no warm-up.
      warmup_ratio: The fraction W / T, instead of `warmup_steps`. W is rounded down.
      decay_steps: The number of decay steps (D). Only "warmup_stable_decay" has it, and needs it.
      init: The learning rate at step 0 of the warm-up. The default is 0.
      end: The learning rate at step T, for the kinds that end at step T. The default is 0.

    Raises:
      UsageError: An argument is missing, does not apply to this kind or contradicts another one. Or there are
        too few steps.

    Example:
      >>> rate = mw.training.schedule("linear", peak=1.0, max_steps=10, warmup_steps=2)
      >>> [float(rate(step)) for step in (0, 1, 2, 10)]
      [0.0, 0.5, 1.0, 0.0]
    """
    if callable(kind):
        return kind
    _check_options(kind, {"end": end, "decay_steps": decay_steps})
    if peak is None or max_steps is None or peak <= 0 or max_steps <= 0:
        raise UsageError(f"a {kind} schedule needs peak > 0 and max_steps > 0; found {peak=}, {max_steps=}.")
    if warmup_steps is not None and warmup_ratio is not None:
        raise UsageError(f"give one of {warmup_steps=} and {warmup_ratio=}, not both.")
    W = warmup_steps if warmup_steps is not None else int(max_steps * (warmup_ratio or 0.0))
    if init is not None and not W:
        raise UsageError(
            f"{init=} is the start of a warm-up, but there is no warm-up.\n  Give warmup_steps too."
        )
    _check_lengths(kind, max_steps, W, decay_steps or 0)
    return Schedule(kind, peak, max_steps, W, decay_steps or 0, init or 0.0, end or 0.0)


@dataclass(frozen=True)
class Schedule:
    """The function that `schedule` returns. `schedule` has checked its numbers."""

    kind: str
    peak: float
    max_steps: int
    warmup_steps: int
    decay_steps: int
    init: float
    end: float

    def __call__(self, step: ArrayLike) -> ArrayLike:
        W = self.warmup_steps
        if not W:
            return self._after_warmup()(step)
        warmup = optax.linear_schedule(self.init, self.peak, W)
        return optax.join_schedules([warmup, self._after_warmup()], [W])(step)

    def _after_warmup(self) -> optax.Schedule:
        """Return the schedule that follows the warm-up; its step 0 is step W."""
        peak, end, T, W, D = self.peak, self.end, self.max_steps, self.warmup_steps, self.decay_steps
        match self.kind:
            case "linear":
                return optax.linear_schedule(peak, end, T - W)
            case "cosine":
                return optax.cosine_decay_schedule(peak, T - W, alpha=end / peak)
            case "constant":
                return optax.constant_schedule(peak)
            case "inverse_sqrt":
                return lambda n: peak * jax.lax.rsqrt(1 + jnp.maximum(n, 0) / W)
            case _:
                stable, decay = optax.constant_schedule(peak), optax.linear_schedule(peak, end, D)
                return optax.join_schedules([stable, decay], [T - W - D])


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    if kind not in _OWN_OPTIONS:
        hint = did_you_mean(kind, _OWN_OPTIONS)
        raise UsageError(f"unknown schedule {kind!r}.{hint}\n  The schedules are {', '.join(_OWN_OPTIONS)}.")
    for name, value in options.items():
        if value is not None and name not in _OWN_OPTIONS[kind]:
            others = [other for other, own in _OWN_OPTIONS.items() if name in own]
            raise UsageError(
                f"a {kind} schedule has no {name}; found {name}={value}.\n"
                f"  Leave it out, or choose {' or '.join(others)}."
            )


def _check_lengths(kind: str, T: int, W: int, D: int) -> None:
    trouble = None
    if not 0 <= W <= T:
        trouble = f"the {W} steps of warm-up must be from 0 to {T}"
    elif kind in ("linear", "cosine") and W == T:
        trouble = f"{W} steps of warm-up leave no step for the decay"
    elif kind == "inverse_sqrt" and W == 0:
        trouble = "it decays as sqrt(W / s), so it needs a warm-up"
    elif kind == "warmup_stable_decay" and not 0 < D <= T - W:
        trouble = f"decay_steps must be from 1 to {T - W}, the steps after the warm-up; found {D}"
    if trouble:
        raise UsageError(f"a {kind} schedule of {T} steps: {trouble}.\n  Change the numbers of steps.")
