"""Where a run's first state comes from, other than from its seed."""

import re

from meshwright import tree
from meshwright.checkpoint import Assign, Casts, cast, open_source, restore
from meshwright.errors import UsageError
from meshwright.train import Builder, Given, TrainState


def from_checkpoint(path: str, only: str = "params/.*", *, assign: Assign = (), casts: Casts = ()) -> Builder:
    r"""Return a builder that takes arrays from a checkpoint, each process what its own devices need.

    Args:
      path: a checkpoint, or a directory of them, of which the newest is taken; or an address.
      only: a pattern for the whole names of what to take: `params/(?!head/).*` leaves the head as it is
        initialised, `.*` takes all, step and optimizer state too.
      assign: other names for what is wanted, as `mw.restore` takes them.
      casts: other dtypes, as `mw.checkpoint.cast` takes them.

    Raises (when called):
      UsageError: `only` matches nothing of the state.
      CheckpointError: there is no checkpoint, or it does not have what is wanted; all differences are listed.
    """

    def build(target: TrainState) -> Given:
        wanted = {name: x for name, x in tree.named_leaves(target).items() if re.fullmatch(only, name)}
        if not wanted:
            some = ", ".join(list(tree.named_leaves(target))[:6])
            raise UsageError(f"from_checkpoint(only={only!r}) matches nothing of the state: {some} …")
        source = cast(open_source(path), casts)
        return tree.named_leaves(restore(source, tree.nested(wanted), assign=assign, ignore=".*"))

    return build


def chain(*builders: Builder) -> Builder:
    """Return a builder that takes what any of `builders` gives; of what several give, the last one's."""
    return lambda target: {name: x for build in builders for name, x in build(target).items()}
