"""The decision whether a run that has ended starts again."""

from dataclasses import dataclass, replace

from meshwright.errors import EXIT_CTRL_C, EXIT_DIVERGED, EXIT_DONE, EXIT_INPUT, EXIT_USAGE

FINAL_EXIT_CODES = (EXIT_DONE, EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED, EXIT_CTRL_C)
"""Exit codes after which a new start would end in the same way, or is not wanted."""


@dataclass(frozen=True)
class Restarts:
    """The restarts that are left. Each checkpoint that is newer than all earlier ones gives them all back.

    Example:
      >>> from meshwright.launch._restarts import Restarts
      >>> once = Restarts(1).after(137, saved=None)  # killed before the first checkpoint: start again
      >>> once.left, once.after(137, saved=None)  # killed again: there was no progress
      (0, None)
      >>> once.after(137, saved=100).left
      0
    """

    allowed: int
    """Largest number of restarts in a row without a newer checkpoint between them."""
    used: int = 0
    """Number of restarts since the newest checkpoint."""
    saved: int = -1
    """Step of the newest checkpoint at the last start; -1 for none."""

    @property
    def left(self) -> int:
        """Number of restarts that are left."""
        return self.allowed - self.used

    def after(self, exit_code: int, saved: int | None) -> "Restarts | None":
        """Return the restarts that are left when the run starts again; None if it should not."""
        if exit_code in FINAL_EXIT_CODES:
            return None
        newest = -1 if saved is None else saved
        used = 0 if newest > self.saved else self.used
        if used >= self.allowed:
            return None
        return replace(self, used=used + 1, saved=max(newest, self.saved))
