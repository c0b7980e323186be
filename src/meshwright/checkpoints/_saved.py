"""The saved checkpoints of a directory: the form in which states are saved, their scores, and retention."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshwright.base._internal import Directory, location, tree
from meshwright.checkpoints import _directory
from meshwright.checkpoints._arrays._cast import Casts, cast_dtypes, cast_leaves, keys_as_data, saved_structs
from meshwright.checkpoints._arrays._restore import compare_source, read_for
from meshwright.checkpoints._arrays._source import cast_back
from meshwright.checkpoints._choice import saved_scores
from meshwright.checkpoints._exports import Names, left_out, named_back, renamed
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._retention import Keep, as_policy
from meshwright.errors import CheckpointError, DamagedError, MeshwrightError
from meshwright.processes._internal import Scores, on_all

log = logging.getLogger("meshwright")
T = TypeVar("T")


class Saved:
    """The saved checkpoints of a directory, for inspection and restoring. It keeps no files open."""

    def __init__(self, directory: str | Directory, keep: int | Keep, cast: Casts, names: Names | None):
        """Look at a directory; the arguments are those of `Checkpoints`.

        Raises:
          UsageError: `directory` cannot hold checkpoints, or `keep` is neither a number nor a policy.
        """
        self.directory = _directory.of_checkpoints(location(directory))
        self.keep = keep
        self._cast, self._names = cast, names
        self._scores: dict[int, Scores] = {}
        self.is_removal_owed = False
        """True on process 0 if old checkpoints may remain: leaving the directory removes them."""

    @property
    def keep(self) -> Keep:
        """The retention policy, which is called after each save. May be set at any time."""
        return self._keep

    @keep.setter
    def keep(self, keep: int | Keep) -> None:
        self._keep = as_policy(keep)

    def check(self, target: tree.PyTree) -> None:
        """Check that `cast` and `names` fit a state, as `save` would.

        Args:
          target: A state, of arrays or structs.

        Raises:
          UsageError: A pattern casts nothing, a dtype does not exist, no leaf is saved, or two leaves would
            get the same name.
        """
        leaves = tree.named_leaves(target)
        cast_dtypes(leaves, self._cast)
        renamed(leaves, self._names)

    def left_out(self, target: tree.PyTree) -> set[str]:
        """Return the names of the leaves that `names` leaves out of checkpoints.

        Args:
          target: A state, of arrays or structs.

        Raises:
          UsageError: No leaf is saved, or two would get the same name.
        """
        return left_out(target, self._names)

    def latest(self) -> int | None:
        """Return the highest step with a complete checkpoint; None without any. Not collective."""
        return max(_directory.complete_steps(self.directory), default=None)

    def scores(self) -> Scores:
        """Return the scores saved with the latest checkpoint. Not collective."""
        latest = self.latest()
        return {} if latest is None else self.scores_by_step().get(latest, {})

    def scores_by_step(self) -> dict[int, Scores]:
        """Return the scores saved with each complete checkpoint that can be read, by step. Not collective."""
        scores = saved_scores(self.directory, self._scores)
        # Set when complete, because the saving thread and the main thread both call this method.
        self._scores = scores
        return scores

    def source(self, step: int) -> NativeSource:
        """Return the checkpoint of a step, opened for `mw.restore`."""
        return NativeSource(_directory.step_path(self.directory, step))

    def restore(self, step: int, target: T, *, otherwise: Callable[[], T]) -> T:
        """Return the checkpoint of a step, restored into `target`. Collective.

        Unlike `resume` it takes no other checkpoint if this one is damaged.

        Args:
          step: The step.
          target: A state of arrays or structs, with the shardings that the result is to have.
          otherwise: Makes a fresh state, which supplies the leaves that `names` leaves out.

        Raises:
          CheckpointError: There is no such checkpoint, or it does not fit `target`.
          DamagedError: It is damaged.
        """
        fresh = self._not_saved(target, otherwise)
        # Only reading can fail on one process alone, so all agree on it before arrays are exchanged.
        source, finish = on_all(lambda: self._read(self.source(step), target, fresh))
        compare_source(source)
        return finish()

    def _leaves(self, state: tree.PyTree) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Return the leaves of a state as they are saved, and the types of its PRNG keys."""
        return keys_as_data(renamed(cast_leaves(tree.named_leaves(state), self._cast), self._names))

    def _structs(self, target: tree.PyTree) -> dict[str, Any]:
        """Return the leaves of a state in the form in which they are saved, as structs."""
        leaves = tree.named_leaves(target)
        dtypes = cast_dtypes(leaves, self._cast)
        return dict(renamed(saved_structs(leaves, dtypes), self._names))

    def _not_saved(self, target: tree.PyTree, otherwise: Callable[[], tree.PyTree]) -> tree.PyTree:
        """Return fresh values for the leaves that are not saved, as a tree. Collective, if `otherwise` is."""
        lacking = self.left_out(target)
        fresh = tree.named_leaves(otherwise()) if lacking else {}
        return tree.nested({name: fresh[name] for name in lacking if name in fresh})

    def _read(
        self, source: NativeSource, target: tree.PyTree, fresh: tree.PyTree
    ) -> tuple[NativeSource, Callable[[], tree.PyTree]]:
        """Read a checkpoint, with `fresh` for leaves not saved; return it, and a function that finishes."""
        named = cast_back(named_back(source, self._names, target), self._cast, target)
        try:
            return source, read_for(named, target, fallback=fresh or None)
        except DamagedError:
            raise
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}\n  If another program saved it, give this one another workdir, or directory of "
                "checkpoints."
            ) from None

    def _remove_old(self, *, just_saved: int) -> None:
        """Remove the checkpoints that the policy does not keep and that are not pinned.

        If the disk or the store does not remove one, this logs a warning, and the next call tries again.
        """
        message = f"step {just_saved} is saved, but older checkpoints could not be removed"
        try:
            if self.is_removal_owed:
                _directory.remove_temporaries(self.directory)
            scores = self.scores_by_step()
            # Whatever the policy returns, the newest checkpoint stays.
            kept_steps = self.keep(scores) | {just_saved, max(scores)}
            for step in sorted(scores.keys() - kept_steps):
                _directory.remove_step(self.directory, step)
            self.is_removal_owed = False
        except (OSError, MeshwrightError) as error:
            self.is_removal_owed = True
            log.warning(f"{message}: {error}. It is tried again after the next save, or at the end.")
        except Exception as error:
            # The error comes from the policy, which is the user's.
            raise MeshwrightError(f"{message}: {error}") from error
