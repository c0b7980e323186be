"""Low-rank adapters for any model: a small trained product beside each frozen matrix.

Sources: LoRA, Hu et al., 2021 (arXiv 2106.09685); rsLoRA, Kalajdzievski, 2023 (arXiv 2312.03732); DoRA, Liu
et al., 2024 (arXiv 2402.09353).
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import OptionalPattern, Table, documented, judge, optional, tree, value_of
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._tuning._adapted import (
    Adapted,
    Part,
    added,
    as_matrices,
    check_letters,
    explaining_other_uses,
    factored,
    letters_of,
    matrix_shape,
    named_key,
    new_part,
    norms_of_outputs,
    parts_of,
)
from meshwright.lm._tuning._quantised import computed, dequantised, is_quantised
from meshwright.parallel._internal import Rule
from meshwright.training._internal import (
    Init,
    Loss,
    Model,
    StatefulLoss,
    Trainable,
    Tx,
    Variables,
    as_init,
    of_loss,
)

BASE, ADAPTER = "base", "adapter"
"""The two parts of the parameters of a model with an adapter."""
_STREAM = zlib.crc32(b"dropout of adapters")
Form = Literal["factored", "merged"]
"""The two ways to compute an adapter."""


_WHOLE = "^params/"


@documented
@dataclass(frozen=True)
class Lora:
    """A low-rank adapter of some weights of a model. `mw.lm.lora` makes it.

    The model then has the parameters `{"base": …, "adapter": …}`. `base` is the model's own tree, which
    stays as it is. `adapter` has, under the name of each adapted weight, `lora_a` [in, rank], which begins
    random, and `lora_b` [rank, out], which begins as zeros, so that the model begins unchanged.
    """

    pattern: str
    """A pattern for the names of the adapted weights, such as `layers/(q|v)`."""
    rank: int
    """The rank of the product of each pair."""
    alpha: float
    """The product is scaled by alpha / rank."""
    dropout: float = 0.0
    """The share of the inputs of each adapter that training drops."""
    dora: bool = False
    """If true, each output has a trained magnitude, `magnitude` [out]."""
    rslora: bool = False
    """If true, the product is scaled by alpha / sqrt(rank) instead."""
    form: Form = "factored"
    """`factored` computes x W + scale (x A) B; the model must use the weights as `x @ w`. `merged` makes the
    whole tree of adapted weights before the loss, which suits any model."""
    dims: tuple[tuple[str, str], ...] = ()
    """Pairs of a pattern and letters, one for each dimension of the weight: `s` stack, `i` input, `o`
    output."""

    def __post_init__(self) -> None:
        Table("lora", (self.pattern,))
        Table.of("lora(dims=)", self.dims)
        for _, letters in self.dims:
            check_letters(letters)
        if self.rank < 1:
            raise UsageError(f"lora: rank is {self.rank}; it must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"lora: dropout is {self.dropout}; it must be at least 0 and below 1.")
        if self.form not in get_args(Form):
            raise UsageError(f"lora: form is {self.form!r}; expected one of {', '.join(get_args(Form))}.")
        if self.form == "merged" and self.dropout:
            raise UsageError(
                'lora: form="merged" makes the weights before the model has inputs, so there is nothing to '
                'drop. Set dropout=0, or use form="factored" with a model that computes x @ w.'
            )

    @property
    def scale(self) -> float:
        """Return the factor of the products."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    def init(self, init: Init | Model) -> Init:
        """Return a function of a key that makes the parameters of the model and the adapter."""

        def make(key: jax.Array) -> Any:
            variables = as_init(init)(key)
            if isinstance(variables, Variables):
                return Variables(self.beside(variables.params, key), variables.model_state)
            return self.beside(variables, key)

        return make

    def beside(self, params: tree.PyTree, key: jax.Array) -> dict[str, tree.PyTree]:
        """Return given parameters with a new adapter, `{"base": params, "adapter": …}`."""
        chosen = self.chosen(params)
        parts: dict[str, Any] = {}
        for name, weight in chosen.items():
            parts[name] = new_part(self.sizes(name, weight), self.rank, named_key(key, name))
            if self.dora:
                parts[name]["magnitude"] = self.first_magnitude(name, weight)
        return {BASE: params, ADAPTER: tree.nested(parts)}

    def chosen(self, params: tree.PyTree) -> dict[str, Any]:
        """Return the weights that the pattern matches, by name."""
        leaves, table = tree.named_leaves(params, is_quantised), Table("lora", (self.pattern,))
        judge({table: leaves, Table.of("lora(dims=)", self.dims): leaves})
        return {name: x for name, x in leaves.items() if table.first(name)}

    def effective(self, params: Mapping[str, tree.PyTree], key: jax.Array | None = None) -> tree.PyTree:
        """Return the parameters to call the model with: the base, with the adapter in its places."""
        if self.form == "merged":
            return self.merged(params)
        return self._with(params, lambda name, weight, part: self._factored(name, weight, part, key))

    def merged(self, params: Mapping[str, tree.PyTree]) -> tree.PyTree:
        """Return the model's parameters with the adapter added, all as arrays.

        Each weight is computed in float32, and has the dtype of the base's; a quantised one has that of its
        scales.

        Example:
          >>> adapter = mw.lm.lora("w", rank=1)
          >>> params = adapter.beside({"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}, mw.training.key_of(0))
          >>> jax.tree.map(jnp.shape, adapter.merged(params))
          {'b': (2,), 'w': (2, 2)}
        """
        return dequantised(self._with(params, self.added))

    def loss(self, loss: Loss | StatefulLoss) -> Callable[..., Any]:
        """Return a loss of the parameters with the adapter, for `mw.make_step` or an `Experiment`."""

        def called(params: Any, batch: Any, key: jax.Array, *model_state: Any, step: Any = None) -> Any:
            stream = jax.random.fold_in(key, _STREAM) if self.dropout else None
            with explaining_other_uses():
                return of_loss(loss, self.effective(params, stream), batch, key, *model_state, step=step)

        return called

    def optimizer(self, optimizer: Tx) -> Trainable:
        """Return an optimizer that trains the adapter alone, and has state for it alone."""
        if isinstance(optimizer, Trainable):
            raise UsageError(
                "lora: the optimizer is a Trainable already, but an adapter decides what is trained. Give "
                "the optax transformation inside it."
            )
        return Trainable(f"^params/{ADAPTER}/.*", optimizer)

    def rules(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Return sharding rules for the parameters with the adapter, given those of the model.

        Quantised weights are split as the weights would be. Adapters stay whole on each device.
        """
        return with_base(rules, f"params/{BASE}/", f"params/{ADAPTER}/")

    def _with(
        self, params: Mapping[str, tree.PyTree], replace: Callable[[str, Any, Any], Any]
    ) -> tree.PyTree:
        """Return the base with each adapted weight replaced by `make(name, weight, adapter)`."""
        _check_pair(params)
        leaves, structure = jax.tree.flatten(params[BASE], is_leaf=is_quantised)
        parts = parts_of(params[ADAPTER])
        named = list(zip(tree.named_leaves(params[BASE], is_quantised), leaves, strict=True))
        for name, weight in named:
            if name in parts:
                check_part(name, weight, parts[name], self)
        return structure.unflatten(
            replace(name, weight, parts[name]) if name in parts else weight for name, weight in named
        )

    def letters(self, name: str, weight: Any) -> str:
        """Return the letters of a weight's dimensions, of `dims` or of a stack of matrices [in, out]."""
        return letters_of(name, weight.shape, value_of(self.dims, name, None))

    def sizes(self, name: str, weight: Any) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of the stack of matrices in a weight, its number of inputs and that of outputs."""
        return matrix_shape(weight.shape, self.letters(name, weight))

    def first_magnitude(self, name: str, weight: Any) -> jax.Array:
        """Return the magnitude that DoRA begins with: the norm of each output's weights."""
        return norms_of_outputs(as_matrices(computed(weight), self.letters(name, weight)))

    def _factored(self, name: str, weight: Any, part: Part, key: jax.Array | None) -> Adapted:
        letters = self.letters(name, weight)
        if not letters.endswith("io") or letters.count("i") + letters.count("o") > 2:
            raise UsageError(
                f'lora: {name} has dims {letters!r}, which form="factored" cannot compute as x @ w. Use '
                'form="merged".'
            )
        return factored(weight, part, named_key(key, name), self.scale, self.dropout)

    def added(self, name: str, weight: Any, part: Part) -> jax.Array:
        """Return a weight with its adapter added, in the dtype of the weight."""
        return added(weight, self.letters(name, weight), part, self.scale)


def check_part(name: str, weight: Any, part: Mapping[str, Any], lora: Lora) -> None:
    """Check that the adapter of a weight has its shapes, as others would be spread over all layers."""
    stack, inputs, outputs = lora.sizes(name, weight)
    a, b = part["lora_a"].shape, part["lora_b"].shape
    if (a[:-1], b[:-2], b[-1:]) != ((*stack, inputs), stack, (outputs,)) or a[-1] != b[-2]:
        raise CheckpointError(
            f"the adapter of {name} has lora_a {a} and lora_b {b}, which do not fit the weight "
            f"{weight.shape}."
        )
    if lora.dora != ("magnitude" in part):
        has = "a" if "magnitude" in part else "no"
        raise CheckpointError(f"the adapter of {name} has {has} magnitude, but dora={lora.dora}.")


def _check_pair(params: Any) -> None:
    if not (isinstance(params, Mapping) and params.keys() == {BASE, ADAPTER}):
        raise UsageError(
            f"a model with an adapter has the parameters {{'{BASE}': …, '{ADAPTER}': …}}; found "
            f"{list(params) if isinstance(params, Mapping) else type(params).__name__}. `Lora.init` and "
            "`Lora.beside` make them."
        )


def lora(
    pattern: str,
    rank: int = 16,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    dora: bool = False,
    rslora: bool = False,
    form: Form = "factored",
    dims: Sequence[tuple[str, str]] = (),
) -> Lora:
    """Return a low-rank adapter for the weights that a pattern matches. It serves any pytree of parameters.

    An adapted weight W is used as W + scale A B, where A [in, rank] and B [rank, out] are trained and W is
    not. Take `mw.lm.adapted(experiment, mw.lm.lora(…))` for a whole run.

    In the form "factored", which is the default, a model that computes `x @ w` computes x W + scale (x A) B.
    That makes no other weight, takes no gradient of W, and adds rank (in + out) products for each token. In
    the form "merged" the adapted weights are made before each loss: that needs memory for them and for their
    gradients, and the products of a gradient of W, about half as many again without rematerialisation.

    Args:
      pattern: A pattern for the names of the weights, `layers/(q|v)`; see `meshwright.base._patterns`.
      rank: The rank of A B.
      alpha: The scale is alpha / rank. None stands for the rank: a scale of 1.
      dropout: The share of the inputs of A that are dropped in training.
      dora: If true, each output has a trained magnitude besides (DoRA). The model's products then also
        compute the norms of the adapted weights, once for each weight and step.
      rslora: If true, the scale is alpha / sqrt(rank) (rsLoRA).
      form: "factored" or "merged". Models of Flax and Equinox need "merged".
      dims: Pairs of a pattern and letters, one for each dimension of the weight: `s` for a stack of
        independent matrices, `i` for an input, `o` for an output, such as `[("query/kernel", "ioo")]`. By
        default the last two dimensions are in and out, and those before are stacked.

    Raises:
      UsageError: A setting is not valid.

    Example:
      >>> adapter = mw.lm.lora("w", rank=2, alpha=4)
      >>> params = adapter.beside({"w": jnp.ones((8, 3))}, mw.training.key_of(0))
      >>> mw.parallel.leaf_names(params), adapter.scale
      (['adapter/w/lora_a', 'adapter/w/lora_b', 'base/w'], 2.0)
      >>> loss = adapter.loss(lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean())
      >>> float(loss(params, {"x": jnp.ones((1, 8))}, mw.training.key_of(1)))
      64.0
    """
    scaled = float(rank if alpha is None else alpha)
    return Lora(pattern, rank, scaled, dropout, dora, rslora, form, tuple(dims))


# The parameters of a model with an adapter are a part of a larger tree, and some are in few bits. The classes
# below apply the model's own rules to the names in this tree.
def with_base(rules: Sequence[Rule], base: str, adapter: str) -> tuple[Rule, ...]:
    """Return rules for parameters below `base`, from those for `params/`; all below `adapter` is whole."""
    return tuple(
        OfPattern(rule, base, adapter, _moved(rule.pattern, base))
        if hasattr(rule, "pattern")
        else OfBase(rule, base, adapter)
        for rule in rules
    )


@dataclass(frozen=True)
class OfBase:
    """A rule of the model, for its parameters below another prefix."""

    rule: Rule
    base: str
    adapter: str

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        if name.startswith(self.adapter):
            return P()
        if not name.startswith(self.base):
            return self.rule(name, x, mesh)
        whole = "params/" + name.removeprefix(self.base)
        codes, scales = (whole.removesuffix(end) for end in ("/codes", "/scales"))
        if scales != whole:
            answer = self.rule(scales, x, mesh)
            return None if answer is None else _where_divisible(answer, x.shape, mesh)
        return self.rule(codes, x, mesh)


@dataclass(frozen=True)
class OfPattern(OfBase):
    """Such a rule with a pattern, which is judged by the names of the larger tree."""

    pattern: str


def _moved(pattern: str, base: str) -> str:
    """Return the pattern for the names below `base`, and for the two arrays of a quantised weight."""
    below = f"^{base}{pattern.removeprefix(_WHOLE)}" if pattern.startswith(_WHOLE) else pattern
    new = f"(?:{below})(?:/codes|/scales)?"
    return optional(new) if isinstance(pattern, OptionalPattern) else new


def _where_divisible(spec: P, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Return the spec without entries that do not divide the scales, which are few."""

    def fits(entry: str | tuple[str, ...] | None, size: int) -> bool:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        return size % math.prod(mesh.shape.get(axis, 1) for axis in axes) == 0

    return P(*(entry if fits(entry, size) else None for entry, size in zip(spec, shape, strict=False)))
