"""The names of `debug` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.debug._child import Orders, play
    from meshwright.debug._first_nan import first_nan
    from meshwright.debug._origin import Around, Input, Origin, first_made, origin
    from meshwright.debug._verify import verify_resume
else:
    __getattr__, __dir__ = lazy_names(__name__)
