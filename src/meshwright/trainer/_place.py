"""The run directory of a trainer: the workdir of its deployer, or a folder of its own in it."""

from pathlib import Path
from weakref import ref

from meshwright.deployer import Deployer
from meshwright.errors import UsageError
from meshwright.storage import is_file_name

CHECKPOINTS = "checkpoints"
_TAKEN = (CHECKPOINTS, "rounds")


class Place:
    """The directory in which a trainer writes its files.

    Raises:
      UsageError: the name cannot be that of a folder.
    """

    def __init__(self, deployer: Deployer, name: str | None):
        if name is not None and (not is_file_name(name) or name in _TAKEN):
            raise UsageError(
                f'Trainer(name={name!r}): it cannot be a folder\'s name. Give one without "/" that prints, '
                'such as "actor".'
            )
        self._deployer, self._name = deployer, name

    @property
    def directory(self) -> Path | None:
        """The run directory; None without a workdir."""
        workdir = self._deployer.workdir
        return None if workdir is None else workdir / (self._name or "")

    def open(self, is_needed: bool) -> str | None:
        """Return the run directory, which is this trainer's from now on; None if there is and need be none.

        Raises:
          UsageError: another trainer has it, it is not one for all processes, or there is none.
        """
        if self.directory is None and not is_needed:
            return None
        directory = self._deployer.shared_workdir("saving checkpoints") / (self._name or "")
        other = self._deployer.trained_in.get(directory)
        if other is not None and other() not in (None, self):
            raise UsageError(
                f"another Trainer of this Deployer trains in {directory} already.\n"
                "  Give each a name of its own: Trainer(..., name='actor')."
            )
        self._deployer.trained_in[directory] = ref(self)
        return str(directory)

    def checkpoints(self, what: str) -> Path:
        """Return where the checkpoints are, which `what` needs.

        Raises:
          UsageError: there is no workdir, or it is not one for all processes.
        """
        return self._deployer.shared_workdir(what) / (self._name or "") / CHECKPOINTS
