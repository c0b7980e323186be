"""The run directory of a trainer: the workdir of its deployer, or a folder in it."""

from pathlib import Path
from weakref import ref

from meshwright.base._internal import is_file_name
from meshwright.engine._deployer._deployer import Deployer
from meshwright.errors import UsageError

CHECKPOINTS = "checkpoints"
_TAKEN = (CHECKPOINTS, "rounds")


class Place:
    """The run directory of a trainer.

    Args:
      deployer: The deployer, which has the workdir.
      name: The name of the folder in the workdir. None means the workdir itself.

    Raises:
      UsageError: The name cannot be the name of a folder.
    """

    def __init__(self, deployer: Deployer, name: str | None):
        if name is not None and (not is_file_name(name) or name in _TAKEN):
            raise UsageError(
                f"Trainer(name={name!r}): it cannot be a folder's name. Give a name of printable characters "
                'without "/", such as "actor".'
            )
        self._deployer, self._name = deployer, name

    @property
    def directory(self) -> Path | None:
        """The run directory, or None if there is no workdir."""
        workdir = self._deployer.workdir
        return None if workdir is None else workdir / (self._name or "")

    def open(self, is_needed: bool) -> str | None:
        """Return the run directory, and reserve it for this trainer. Return None if there is no workdir.

        Args:
          is_needed: True if a missing workdir is an error.

        Raises:
          UsageError: Another trainer uses the directory, the processes do not share it, or it is missing.
        """
        if self.directory is None and not is_needed:
            return None
        directory = self._deployer.shared_workdir("saving checkpoints") / (self._name or "")
        other = self._deployer.trained_in.get(directory)
        if other is not None and other() not in (None, self):
            raise UsageError(
                f"another Trainer of this Deployer trains in {directory} already.\n"
                "  Give each trainer a different name: Trainer(..., name='actor')."
            )
        self._deployer.trained_in[directory] = ref(self)
        return str(directory)

    def checkpoints(self, what: str) -> Path:
        """Return the directory of the checkpoints.

        Args:
          what: The operation that needs them, for the error.

        Raises:
          UsageError: There is no workdir, or the processes do not share it.
        """
        return self._deployer.shared_workdir(what) / (self._name or "") / CHECKPOINTS
