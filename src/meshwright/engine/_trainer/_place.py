"""The run directory of a trainer: the workdir of its deployer, or a folder in it."""

from pathlib import Path
from weakref import ref

from meshwright.base._internal import is_file_name
from meshwright.engine._deployer._deployer import Deployer
from meshwright.errors import UsageError

_TAKEN = ("checkpoints", "rounds")


class Place:
    """The run directory of a trainer."""

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
        """Return the run directory, and reserve it for this trainer. Return None if there is no workdir."""
        if self.directory is None and not is_needed:
            return None
        directory = self.shared("saving checkpoints")
        other = self._deployer.trained_in.get(directory)
        if other is not None and other() not in (None, self):
            raise UsageError(
                f"another Trainer of this Deployer trains in {directory} already.\n"
                "  Give each trainer a different name: Trainer(..., name='actor')."
            )
        self._deployer.trained_in[directory] = ref(self)
        return str(directory)

    def shared(self, what: str) -> Path:
        """Return the run directory, which all processes must share for what they do."""
        return self._deployer.shared_workdir(what) / (self._name or "")
