"""Run a program, and write down what each `Trainer.fit` in it came to: `python recording.py PROGRAM WORDS …`.

Programs without a workdir leave no files; `fits.json` in the current directory stands for them.
"""

import functools
import json
import runpy
import sys
from pathlib import Path

import jax
from reading import digest

import meshwright as mw


def recorded(fit, fits):
    """Return `fit`, which also adds the scores and the digests of the parameters to `fits`."""

    @functools.wraps(fit)
    def run(trainer, *args, **kwargs):
        scores = fit(trainer, *args, **kwargs)
        named = jax.tree_util.tree_leaves_with_path((trainer.params, trainer.model_state))
        params = {jax.tree_util.keystr(path): digest(x) for path, x in named}
        fits.append({"scores": dict(scores), "params": params})
        return scores

    return run


def main(program: str, *words: str) -> None:
    """Run `program` as Python would."""
    fits: list = []
    mw.Trainer.fit = recorded(mw.Trainer.fit, fits)
    sys.path.insert(0, str(Path(program).parent))
    sys.argv = [program, *words]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        Path("fits.json").write_text(json.dumps(fits))


if __name__ == "__main__":
    main(*sys.argv[1:])
