"""The deployer's methods for where arrays live: rules, specs, and arrays placed as they say."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.errors import UsageError, nearest
from meshwright.patterns import judge
from meshwright.sharding import Rule, auto, beside_params, copy_to, fsdp, human_bytes
from meshwright.train import tables_in
from meshwright.tree import PyTree

if TYPE_CHECKING:
    from meshwright.deployer._deployer import Deployer


class Split(NamedTuple):
    """A rule for one array, which can be printed and taken apart."""

    name: str
    spec: P

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return self.spec if name == self.name else None

    @property
    def pattern(self) -> str:
        """The pattern of the one name, so that a rule for what is not there is told of."""
        return f"^{re.escape(self.name)}"

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"


def get_sharding_rules(deployer: "Deployer", params_shape_or_params: PyTree) -> list[Split] | None:
    """Return a rule for each parameter that is better split over the mesh, or None if there is none.

    They are found from names and shapes, and can be printed, changed and left out. `get_params_spec` and
    `load_ckpt` take them, and `Trainer` as its `rules`, which finds good ones without them, too.
    """
    layout = deployer.layout(auto(params_shape_or_params), fsdp())
    placed = tree.named_leaves(layout.shardings({"params": params_shape_or_params}))
    return [Split(name, sharding.spec) for name, sharding in placed.items() if any(sharding.spec)] or None


def get_params_spec(
    deployer: "Deployer", params_shape_or_params: PyTree, params_sharding_rules: Any
) -> PyTree:
    """Return a tree of PartitionSpecs.

    Args:
      params_sharding_rules: a list of rules, or None to leave all whole. For parameters that are a
        dictionary of several models', it may be a dictionary of these.

    Raises:
      UsageError: there is something else among the rules, or one decides nothing.
      LayoutError: listing all arrays that the mesh does not divide.
    """
    if isinstance(params_sharding_rules, Mapping):
        _check_keys(params_sharding_rules, params_shape_or_params)
        for key, rules in params_sharding_rules.items():
            deployer.layout(*_rules(rules)).check({"params": params_shape_or_params[key]})
    layout = deployer.layout(*_rules(params_sharding_rules))
    return _specs(layout.shardings({"params": params_shape_or_params})["params"])


def get_opt_state_spec(
    deployer: "Deployer",
    params_shape_or_params: PyTree,
    params_spec: PyTree,
    optimizer: optax.GradientTransformation,
) -> PyTree:
    """Return a tree of PartitionSpecs of the optimizer's state, beside those of the parameters."""
    opt_state = jax.eval_shape(optimizer.init, params_shape_or_params)
    judge(dict.fromkeys(tables_in(opt_state), tree.leaf_names({"params": params_shape_or_params})))
    return _specs(beside_params(opt_state, params_shape_or_params, shardings(deployer.mesh, params_spec)))


def shard_params(deployer: "Deployer", params: PyTree, params_spec: PyTree, desc: str = "params") -> PyTree:
    """Return copies of `params` on the mesh, split as `params_spec` says; the originals stay. Collective.

    Args:
      params: arrays of JAX or NumPy, parameters or other ones.
      desc: what they are, for the log.
    """
    num_bytes = sum(getattr(x, "nbytes", 0) for x in jax.tree.leaves(params))
    deployer.log_info(f"Sharding {desc}: {human_bytes(num_bytes)} over {dict(deployer.mesh.shape)}")
    return copy_to(params, shardings(deployer.mesh, params_spec))


def shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    """Return a tree of specs as shardings on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))


def _specs(shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)


def _rules(given: Any) -> Iterator[Rule]:
    """Yield the rules of a list of them, of None, or of a dictionary of these."""
    if isinstance(given, Mapping):
        for key, inner in given.items():
            yield from (_below(f"params/{key}/", rule) for rule in _rules(inner))
        return
    for rule in given or ():
        if not callable(rule):
            raise UsageError(
                f"{rule!r} is no sharding rule.\n"
                "  Give what get_sharding_rules returns, or mw.match('q_proj/kernel', None, 'tensor')."
            )
        yield rule


def _below(above: str, rule: Rule) -> Rule:
    """Return `rule`, which calls one model's parameters `params/...`, for what is called `above...`."""

    def of_model(name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return rule(f"params/{name.removeprefix(above)}", x, mesh) if name.startswith(above) else None

    return of_model


def _check_keys(rules: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    for key in rules:
        if key not in params:
            close = nearest(key, params)
            hint = f"Did you mean {close!r}?" if close else f"There are {', '.join(params)}."
            raise UsageError(f"there are sharding rules for {key!r}, which is not in the parameters. {hint}")
