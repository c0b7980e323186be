"""The checkpoints that are in a directory: in which form states are saved there, and which stay."""

from collections.abc import Callable, Mapping
from typing import Any

from meshwright import tree
from meshwright.arrays import (
    Casts,
    Names,
    cast_back,
    cast_dtypes,
    cast_leaves,
    keys_as_data,
    left_out,
    named_back,
    read_for,
    renamed,
)
from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import NativeSource
from meshwright.checkpoint._retention import Keep, as_policy
from meshwright.checkpoint._scores import saved_scores
from meshwright.errors import MeshwrightError
from meshwright.storage import Directory, location
from meshwright.when import Scores


class Saved:
    """What is saved in a directory: to be looked at, and read into states again. Nothing is held open."""

    def __init__(self, directory: str | Directory, keep: int | Keep, cast: Casts, names: Names | None):
        """Take what is in `directory`: states, saved as `cast` and `names` say; `keep` says which stay.

        Raises:
          UsageError: `directory` is no place for checkpoints, or `keep` neither a number nor a policy.
        """
        self.directory = _directory.of_checkpoints(location(directory))
        self.keep = keep
        self._cast, self._names = cast, names
        self._scores: dict[int, Scores] = {}

    @property
    def keep(self) -> Keep:
        """What says which checkpoints stay. May be set at any time, and is asked after each save."""
        return self._keep

    @keep.setter
    def keep(self, keep: int | Keep) -> None:
        self._keep = as_policy(keep)

    def check(self, target: tree.PyTree) -> None:
        """Raise now what `save` would say of `cast` and `names` of `target`, a state, which may be abstract.

        Raises:
          UsageError: A pattern casts nothing, or there is no such dtype; nothing is saved, or two leaves
            would have one name.
        """
        leaves = tree.named_leaves(target)
        cast_dtypes(leaves, self._cast)
        renamed(leaves, self._names)

    def left_out(self, target: tree.PyTree) -> set[str]:
        """Return the names of the leaves of a state like `target` that are not saved.

        Raises:
          UsageError: Of none it is said that it is saved, or two would have one name.
        """
        return left_out(target, self._names)

    def latest(self) -> int | None:
        """Return the highest step of which there is a complete checkpoint. Not collective."""
        return max(_directory.complete_steps(self.directory), default=None)

    def scores(self) -> Scores:
        """Return the scores that were saved with the latest checkpoint. Not collective."""
        latest = self.latest()
        return {} if latest is None else self.scores_by_step().get(latest, {})

    def scores_by_step(self) -> dict[int, Scores]:
        """Return the scores saved with each complete checkpoint that can be read. Not collective."""
        found = saved_scores(self.directory, self._scores)
        self._scores = found  # when it is complete: the thread and the main thread both come here
        return found

    def source(self, step: int) -> NativeSource:
        """Return the checkpoint of `step`, to `restore` from."""
        return NativeSource(_directory.step_path(self.directory, step))

    def _leaves(self, state: tree.PyTree) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Return what is saved of a state, by name, and the implementations of its PRNG keys.

        Raises:
          UsageError: As `check`, or a number does not fit into its dtype.
        """
        return keys_as_data(renamed(cast_leaves(tree.named_leaves(state), self._cast), self._names))

    def _not_saved(self, target: tree.PyTree, otherwise: Callable[[], tree.PyTree]) -> tree.PyTree:
        """Return what is not saved, made anew; nothing else of it is held. Collective, if `otherwise` is."""
        lacking = self.left_out(target)
        made = tree.named_leaves(otherwise()) if lacking else {}
        return tree.nested({name: made[name] for name in lacking if name in made})

    def _read(
        self, step: int, target: tree.PyTree, fresh: tree.PyTree
    ) -> tuple[NativeSource, Callable[[], tree.PyTree]]:
        """Read the checkpoint of `step`, and `fresh` for what is not saved; return what finishes that."""
        source = self.source(step)
        named = cast_back(named_back(source, self._names, target), self._cast, target)
        return source, read_for(named, target, fallback=fresh or None)

    def _remove_old(self, *, just_saved: int) -> None:
        """Remove the checkpoints that `keep` does not keep and that are not pinned."""
        try:
            found = self.scores_by_step()
            kept = self.keep(found) | {just_saved, max(found)}
            for step in sorted(found.keys() - kept):
                _directory.remove_step(self.directory, step)
        except Exception as error:
            said = f"step {just_saved} is saved, but older checkpoints could not be removed: {error}"
            raise MeshwrightError(said) from error
