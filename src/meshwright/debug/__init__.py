"""After a fault: a run is played again to its first NaN; a program is killed, continued and compared."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.debug._first_nan import first_nan
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["first_nan"]
