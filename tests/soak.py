"""How many random cases a test tries: a few in `make test`, many in `make soak`, from a seed that is printed.

A test that draws its cases at random takes `cases(few=10, many=2000)` of them, draws them with `rng("name")`,
and is marked `@pytest.mark.soak`. `SEED=7 make soak` repeats a run.
"""

import os
import random
from collections.abc import Callable, Iterable

SOAKING = "SOAK" in os.environ
SEED = int(os.environ.get("SEED", "20261122"))


def cases(few: int, many: int) -> int:
    """Return how many cases to try."""
    return many if SOAKING else few


def rng(name: str) -> random.Random:
    """Return a generator that is the test's own, so that one test's cases do not depend on another's."""
    return random.Random(f"{SEED}/{name}")


def play_many(play: Callable[[str], object], name: str, number: int, first: Iterable[int] = ()) -> None:
    """Play random histories, each from a seed of its own, which is added to the error of one that fails.

    Args:
      play: Plays and checks the history that follows from a seed.
      name: The name of the histories, which is a part of their seeds.
      number: The number of histories, which are counted from 0.
      first: Histories to play before all others.
    """
    for history in [*first, *range(number)]:
        seed = f"{SEED}/{name}/{history}"
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"the history of the seed {seed!r}")
            raise
