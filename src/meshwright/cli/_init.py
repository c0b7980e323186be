"""`meshwright init`: write a first program, to be run as it is, and then on the user's own file."""

import argparse
import shlex
import sys
from pathlib import Path

from meshwright.cli._parser import Commands, Result
from meshwright.cli._process import program
from meshwright.cli._target import as_module
from meshwright.errors import UsageError

_PACKAGES = {"nnx": "flax", "linen": "flax", "equinox": "equinox"}
_TAKEN = ("equinox", "flax", "jax", "meshwright", "numpy", "optax")
"""Modules that the programs import. A file of that name would be found in their place."""

_HEAD = '''\
"""Learn y from x. Change `read` for your data, and `make` for your model."""

import sys

{imports}

def read(file):
    """Return examples to train on and to test on: x [examples, features], y [examples]."""
    if not file:  # none is given: a problem that is made up
        x = np.random.default_rng(0).normal(size=(2048, 8))
        y = np.sin(x).sum(-1)
    elif file.endswith(".npz"):  # with arrays x and y
        x, y = (np.load(file)[name] for name in ("x", "y"))
    else:  # a .csv file of numbers, with y in the last column
        table = np.genfromtxt(file, delimiter=",", ndmin=2)
        table = table[~np.isnan(table).any(-1)]  # without headings and incomplete rows
        x, y = table[:, :-1], table[:, -1]
    if len(x) < 5:
        raise mw.errors.InputError(f"{{file}} has {{len(x)}} complete rows of numbers; give 5 or more.")
    train, test = np.split(np.random.default_rng(0).permutation(len(x)), [len(x) * 4 // 5])
    x, y = (((a - a[train].mean(0)) / (a[train].std(0) + 1e-6)).astype(np.float32) for a in (x, y))
    return tuple({{"x": x[i], "y": y[i]}} for i in (train, test))

'''

_TAIL = """

def experiment(file="", workdir="runs/{name}", learning_rate: float = 3e-3, width: int = 64):
    train, test = read(file)
    model, predict = make(train["x"].shape[1], width)

    def measure(params, batch):
        return {"loss": (predict(params, batch["x"]) - batch["y"]) ** 2}

    return mw.Experiment(
        workdir=workdir,
        model=model,
        loss=lambda params, batch: measure(params, batch)["loss"].mean(),
        optimizer=optax.adamw(learning_rate),
        input=mw.Input(train, batch_size=min(64, len(train["x"]))),
        max_steps=500,
        evaluations={"test": mw.Evaluation(measure, test, when=100)},
        save=mw.Save(when=100, keep=mw.checkpoints.best("test/loss", "min")),
    )


if __name__ == "__main__":
    mw.run(experiment(*sys.argv[1:]))
"""

_ALL = "import meshwright as mw\nimport numpy as np\nimport optax\n"
_IMPORTS = {
    "nnx": f"{_ALL}from flax import nnx\n",
    "linen": f"{_ALL}from flax import linen as nn\n",
    "equinox": f"import equinox as eqx\nimport jax\n{_ALL}",
    "plain": f"import jax\nimport jax.numpy as jnp\n{_ALL}",
}

_MODELS = {
    "nnx": """
class Net(nnx.Module):
    def __init__(self, features, width, *, rngs):
        self.hidden, self.out = nnx.Linear(features, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def make(features, width):
    model = mw.functional(lambda rngs: Net(features, width, rngs=rngs))
    return model, lambda params, x: model.apply(params, x)[:, 0]
""",
    "linen": """
class Net(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))


def make(features, width):
    model = mw.functional(Net(width), np.zeros((1, features), np.float32))
    return model, lambda params, x: model.apply(params, x)[:, 0]
""",
    "equinox": """
def make(features, width):
    model = mw.functional(lambda key: eqx.nn.MLP(features, 1, width, 1, key=key))
    return model, lambda params, x: jax.vmap(model.bind(params))(x)[:, 0]
""",
    "plain": """
def make(features, width):
    def init(key):
        first, second = jax.random.split(key)
        w, v = jax.random.normal(first, (features, width)), jax.random.normal(second, (width,))
        return {"w": w / features**0.5, "b": jnp.zeros(width), "v": v / width**0.5}

    def predict(params, x):
        return jax.nn.relu(x @ params["w"] + params["b"]) @ params["v"]

    return init, predict
""",
}


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("init", init)
    command.add_argument(
        "kind",
        nargs="?",
        type=_kind,
        choices=("nnx", "linen", "equinox", "plain"),
        default="plain",
        help="library of the model: Flax NNX, Flax Linen, Equinox or none (default: plain)",
    )
    command.add_argument(
        "file", nargs="?", metavar="FILE", default="train.py", help="the file to write (default: train.py)"
    )


def _kind(word: str) -> str:
    if word.endswith(".py"):
        raise argparse.ArgumentTypeError(f"the kind comes first: meshwright init plain {word}")
    return word


def init(options: argparse.Namespace) -> Result:
    """Write the program, and say what to run."""
    path, kind = Path(options.file), options.kind
    target = f"{options.file}:experiment"
    if path.suffix != ".py" or as_module(target) == target:
        raise UsageError(
            f"{path} cannot be imported as a Python program. Give a name such as train.py, in this directory."
        )
    if path.parts[0].removesuffix(".py") in (*_TAKEN, *sys.stdlib_module_names):
        raise UsageError(
            f"{path} would be imported in place of the package of that name: give another, such as train.py."
        )
    tail = _TAIL.replace("{name}", path.stem)
    text = _HEAD.format(imports=_IMPORTS[kind]) + _MODELS[kind] + tail
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already and stays as it is. Name another: `meshwright init {kind} first.py`."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    return _next(path, target, kind), {"file": str(path), "target": target}


def _next(path: Path, target: str, kind: str) -> str:
    import importlib.util

    train = f"{program()} train {shlex.quote(target)}"
    needed = _PACKAGES.get(kind)
    lines = [f"wrote {path}. Next:"]
    if needed and importlib.util.find_spec(needed) is None:
        lines.append(f"  pip install {needed}")
    lines += [
        f"  {train}",
        f"  {train} file=YOUR.csv workdir=runs/mine     # or YOUR.npz, with arrays x and y",
        f"  {train} learning_rate=1e-2 workdir=runs/faster",
        f"  {program()} runs",
    ]
    return "\n".join(lines)
