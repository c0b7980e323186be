"""Estimates of a step on hardware that is not here, and the search for settings that fit.

`_chips` has the hardware: a `Chip` with the source of its figures.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.plan._hardware import hardware_named
    from meshwright.plan._plan import plan_step
    from meshwright.plan._roofline import published_rates
    from meshwright.plan._runs import compile_ahead
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["compile_ahead", "hardware_named", "plan_step", "published_rates"]
