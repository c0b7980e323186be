"""What automatic sharding makes devices say to each other: bytes of collectives, from compiled programs.

Each model's loss and gradients are compiled for eight virtual CPU devices, at 2, 4 and 8 model shards,
from structs: nothing is computed. Compared are Megatron's rules written by hand, `mw.infer_rules` with the
loss and from shapes alone, and redco's rules. The bar: traced at most 1.05 × the bytes of rules by hand.
"""

import argparse
import importlib.util
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models.cases import CASES, Case

import meshwright as mw
from meshwright.parallel._explain import device_bytes
from meshwright.parallel._layout import place
from meshwright.parallel._rules import Rule
from meshwright.program._hlo._collectives import collectives

Tree = Any
MAX_RATIO = 1.05  # of the bytes with rules written by hand
SHARDS = (2, 4, 8)
TINY = "mnist_cnn"


@dataclass(frozen=True)
class Found:
    """What one program exchanges, in bytes per device, and what of the parameters a device holds."""

    collectives: dict[str, int]
    params_bytes: int

    @property
    def exchanged(self) -> int:
        return sum(self.collectives.values())


def measure(case: Case, shardings: Tree, layout: mw.Layout) -> Found:
    """Compile the loss and its gradients, which end up where their parameters are."""
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.batch_sharding), case.batch
    )
    gradients = jax.jit(jax.value_and_grad(case.loss), out_shardings=(layout.replicated, shardings))
    with jax.set_mesh(layout.mesh):
        compiled = gradients.lower(place(case.params, shardings), batch).compile()
    held = sum(jax.tree.leaves(jax.tree.map(device_bytes, case.params, shardings)))
    return Found(bytes_by_kind(compiled.as_text(), layout.mesh), held)


def bytes_by_kind(hlo: str, mesh: jax.sharding.Mesh) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in collectives(hlo, mesh):
        found[each.kind] += each.times * each.nbytes
    return dict(found)


def redco_shardings(params: Tree, layout: mw.Layout) -> Tree:
    """Return where redco puts each array, its mesh axis called as ours."""
    from flax.traverse_util import flatten_dict
    from redco.deployers.partition_utils import get_params_spec, get_sharding_rules

    rules = get_sharding_rules(params, layout.mesh.shape["tensor"])
    specs = flatten_dict(get_params_spec(params, rules), sep="/")

    def one(name: str, _: Any) -> NamedSharding:
        return NamedSharding(layout.mesh, P(*(axis and "tensor" for axis in specs[name])))

    return mw.base._internal.map_named(one, params)


def candidates(case: Case, mesh: jax.sharding.Mesh, *, redco: bool) -> dict[str, Tree]:
    """Return the shardings to compare, by whose they are."""

    def by(*rules: Rule) -> Tree:
        return mw.Layout(mesh, rules).shardings(case.params)

    found = {
        "by hand": by(*case.rules),
        "traced": by(mw.infer_rules(case.params, case.loss, case.batch)),
        "from shapes": by(mw.infer_rules(case.params)),
    }
    return found | ({"redco": redco_shardings(case.params, mw.Layout(mesh))} if redco else {})


def compare(name: str, shards: int, *, redco: bool) -> dict[str, Found]:
    case, layout = CASES[name](), mw.Layout(mw.make_mesh(f"data=-1,tensor={shards}"))
    measured: dict[tuple[Any, ...], Found] = {}
    found = {}
    for whose, shardings in candidates(case, layout.mesh, redco=redco).items():
        same = tuple(jax.tree.leaves(shardings))
        if same not in measured:
            measured[same] = measure(case, shardings, layout)
        found[whose] = measured[same]
    show(name, shards, found)
    return found


def show(name: str, shards: int, found: dict[str, Found]) -> None:
    by_hand = found["by hand"].exchanged
    cells = [
        f"{one.exchanged / 1e6:9.1f} {one.exchanged / by_hand:6.2f} {one.params_bytes / 1e6:8.0f}"
        for one in found.values()
    ]
    print(f"{'✓' if is_met(found) else '✗'} {name:10}{shards:3} " + " |".join(cells), flush=True)


def is_met(found: dict[str, Found]) -> bool:
    return found["traced"].exchanged <= MAX_RATIO * found["by hand"].exchanged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument("--no-redco", dest="redco", action="store_false")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    models, shards, redco = options.models, SHARDS, options.redco
    if options.tiny:
        models, shards = [TINY], SHARDS[:1]
        redco = redco and importlib.util.find_spec("redco") is not None
    if options.redco and not redco:
        print("redco is left out: pip install redco==0.4.23")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    whose = ["by hand", "traced", "from shapes", *(["redco"] if redco else [])]
    print("MB exchanged per device, ratio to rules by hand, MB of parameters per device")
    print(f"{'':16}" + " |".join(f"{name:^25}" for name in whose))
    found = {name: {n: compare(name, n, redco=redco) for n in shards} for name in models}
    if options.json:
        plain = {
            name: {n: {whose: asdict(one) for whose, one in each.items()} for n, each in at.items()}
            for name, at in found.items()
        }
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | {"found": plain}, indent=2))
    sys.exit(not all(is_met(each) for at in found.values() for each in at.values()))


if __name__ == "__main__":
    main()
