"""Train any JAX model on one device or thousands, with the same file.

The most used names are here; the packages, such as `mw.data` and `mw.checkpoints`, have the rest.
Names are loaded when they are first used, so that `meshwright --help` does not wait for JAX.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names
from meshwright._version import __version__

if TYPE_CHECKING:
    from meshwright import (
        checkpoints,
        data,
        debug,
        engine,
        errors,
        launch,
        lm,
        nn,
        observe,
        parallel,
        plan,
        report,
        training,
    )
    from meshwright.checkpoints._arrays._restore import restore
    from meshwright.checkpoints._checkpoints import Checkpoints
    from meshwright.data._batches import batches
    from meshwright.engine._adapters._functional import functional
    from meshwright.engine._deployer._deployer import Deployer
    from meshwright.engine._evaluation._description import Evaluation
    from meshwright.engine._experiment._experiment import Experiment, Input
    from meshwright.engine._experiment._run import evaluate
    from meshwright.engine._predict._predictor import Predictor
    from meshwright.engine._settings import Compile, Logging, Profile, Save, Watchdog
    from meshwright.engine._stopping import Stop
    from meshwright.engine._trainer._trainer import Trainer
    from meshwright.errors import MeshwrightError
    from meshwright.observe._metrics import Mean
    from meshwright.parallel._infer_rules import infer_rules
    from meshwright.parallel._layout import Layout
    from meshwright.parallel._mesh import make_mesh
    from meshwright.plan._runs import run
    from meshwright.training._loop import fit
    from meshwright.training._state import TrainState
    from meshwright.training._step import make_step
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Checkpoints",
    "Compile",
    "Deployer",
    "Evaluation",
    "Experiment",
    "Input",
    "Layout",
    "Logging",
    "Mean",
    "MeshwrightError",
    "Predictor",
    "Profile",
    "Save",
    "Stop",
    "TrainState",
    "Trainer",
    "Watchdog",
    "__version__",
    "batches",
    "checkpoints",
    "data",
    "debug",
    "engine",
    "errors",
    "evaluate",
    "fit",
    "functional",
    "infer_rules",
    "launch",
    "lm",
    "make_mesh",
    "make_step",
    "nn",
    "observe",
    "parallel",
    "plan",
    "report",
    "restore",
    "run",
    "training",
]
