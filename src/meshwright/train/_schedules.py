"""Learning rates as functions of the step: the usual shapes, put together from optax's schedules.

T is the number of all steps, W of those that warm up, D of those at the end of a decay of its own. A step s
is an *update of the optimizer*, counted from 0; microbatches do not count.

    s < W, all shapes    init + (peak - init) s / W                                arXiv:1706.02677, 2.2
    linear               peak + (end - peak) (s - W) / (T - W)                     arXiv:1810.04805, A.2
    cosine               end + (peak - end) (1 + cos(pi (s - W) / (T - W))) / 2    arXiv:1608.03983, eq. 5
    constant             peak
    inverse_sqrt         peak sqrt(W / s)                                          arXiv:1706.03762, 5.3
    warmup_stable_decay  peak, and from step T - D on
                         peak + (end - peak) (s - T + D) / D                       arXiv:2405.18392, 3

Those that end at step T stay at `end` after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from meshwright.errors import UsageError, nearest

_OWN_OPTIONS = {
    "linear": ("end",),
    "cosine": ("end",),
    "constant": (),
    "inverse_sqrt": (),
    "warmup_stable_decay": ("end", "decay_steps"),
}
"""The shapes, and which of the arguments that not all of them have each has."""


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
      kind: a shape, see above. Any function of the step is returned as it is, whatever the rest.
      peak: the learning rate at the end of warm-up. All shapes need it.
      max_steps: T. All shapes need it.
      warmup_steps: W; by default there is no warm-up.
      warmup_ratio: W as a part of T, rounded down; instead of `warmup_steps`.
      decay_steps: D. "warmup_stable_decay" needs it, and no other takes it.
      init: the learning rate at step 0 of a warm-up; 0 by default.
      end: the learning rate at step T, for the shapes that end at one; 0 by default.

    Raises:
      UsageError: an argument is missing, is not for this shape or contradicts another, or the steps
        are too few.

    Example:
      >>> rate = mw.train.schedule("linear", peak=1.0, max_steps=10, warmup_steps=2)
      >>> [float(rate(step)) for step in (0, 1, 2, 10)]
      [0.0, 0.5, 1.0, 0.0]
    """
    if callable(kind):
        return kind
    _check_options(kind, {"end": end, "decay_steps": decay_steps})
    if peak is None or max_steps is None or peak <= 0 or max_steps <= 0:
        raise UsageError(f"a {kind} schedule needs peak > 0 and max_steps > 0; found {peak=}, {max_steps=}.")
    W = _warmup(max_steps, warmup_steps, warmup_ratio)
    if init is not None and not W:
        raise UsageError(f"{init=} is where a warm-up starts, but there is none.\n  Give warmup_steps too.")
    _check_lengths(kind, max_steps, W, decay_steps or 0)
    return Schedule(kind, peak, max_steps, W, decay_steps or 0, init or 0.0, end or 0.0)


@dataclass(frozen=True)
class Schedule:
    """The learning rate that `schedule` makes. Its numbers were checked there."""

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


def _warmup(steps: int, warmup_steps: int | None, warmup_ratio: float | None) -> int:
    if warmup_steps is not None and warmup_ratio is not None:
        raise UsageError(f"give one of {warmup_steps=} and {warmup_ratio=}, not both.")
    return warmup_steps if warmup_steps is not None else int(steps * (warmup_ratio or 0.0))


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    if kind not in _OWN_OPTIONS:
        close = nearest(kind, _OWN_OPTIONS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"unknown schedule {kind!r}.{hint}\n  There are: {', '.join(_OWN_OPTIONS)}.")
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
        trouble = f"{W} steps of warm-up do not fit in it"
    elif kind in ("linear", "cosine") and W == T:
        trouble = f"{W} steps of warm-up leave none to decay in"
    elif kind == "inverse_sqrt" and W == 0:
        trouble = "it falls as sqrt(W / s), so it needs a warm-up"
    elif kind == "warmup_stable_decay" and not 0 < D <= T - W:
        trouble = f"decay_steps must be from 1 to the {T - W} that {W} of warm-up leave; it is {D}"
    if trouble:
        raise UsageError(f"a {kind} schedule of {T} steps: {trouble}.\n  Change the warm-up or the steps.")
