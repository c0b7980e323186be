"""The table of primitives: it has all that the models here are made of, and all readers go by it."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from benchmarks.models.cases import CASES
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.program._flops import flops
from meshwright.program._primitives import TABLE
from meshwright.program._program import program_of, walk
from plan.steps import F32, costs, sent

TOKENS = jax.ShapeDtypeStruct((8, 17), jnp.int32)


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def case(name):
    made = CASES[name]()
    return made.loss, made.params, made.batch


def language_model(module, cfg):
    def loss(params, tokens):
        logits = module.logits(cfg, params, tokens, remat="nothing")
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return loss, jax.eval_shape(functools.partial(module.init, cfg), jax.random.key(0)), TOKENS


def translator():
    cfg = t5.Config()
    params = jax.eval_shape(functools.partial(t5.init, cfg), jax.random.key(0))
    return lambda params, tokens: t5.logits(cfg, params, tokens, tokens).mean(), params, TOKENS


MODELS = {
    **{name: functools.partial(case, name) for name in CASES},
    **{
        name: functools.partial(language_model, decoder, decoder.config(name))
        for name in ("gemma-2-2b", "gemma-3-1b")
    },
    "gpt2 model": functools.partial(language_model, gpt2, gpt2.Config()),
    "t5 model": translator,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.daily(2)
def test_the_table_has_what_a_model_and_its_training_are_made_of(model):
    loss, params, batch = MODELS[model]()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    layout = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1]))
    step = mw.make_step(lambda params, batch, key: loss(params, batch), tx, layout, microbatches=2)
    state = mw.training.abstract_state(
        lambda key: jax.tree.map(lambda x: jnp.zeros(x.shape), params), tx, layout
    )
    kinds = {operation.kind for operation in walk(program_of(step.trace(state, batch).jaxpr))}
    assert {kind.replace("-", "_") for kind in kinds} <= TABLE.keys()


mixed_p = Primitive("mixed")
mixed_p.def_abstract_eval(lambda x, w, **_: x.update(shape=(*x.shape[:-1], w.shape[1])))


def mixed(x, w):
    """A matrix product by a name that nobody knows."""
    return mixed_p.bind(x, w, dimension_numbers=(((x.ndim - 1,), (0,)), ((), ())))


def two_layers(params, x):
    return mixed(jnp.tanh(mixed(x, params["up"])), params["down"]).mean()


UP, DOWN = (64, 256), (256, 64)
PARAMS = {"up": struct(*UP), "down": struct(*DOWN)}


def test_a_primitive_that_is_taught_in_the_table_is_known_to_all_who_read_programs(monkeypatch):
    monkeypatch.setitem(TABLE, "mixed", TABLE["dot_general"])
    rule, mesh = mw.infer_rules(PARAMS, two_layers, struct(8, 64)), mw.make_mesh("data=2,tensor=4")
    specs = {name: rule(name, x, mesh) for name, x in PARAMS.items()}
    assert specs == {"up": P(None, "tensor"), "down": P("tensor", None)}
    counted = flops(two_layers, PARAMS, struct(8, 64))
    assert counted.model == 2 * (2 * 8 * 64 * 256)
    planned = costs(
        two_layers, {"up": (UP, specs["up"]), "down": (DOWN, specs["down"])}, (8, 64), {"tensor": 4}
    )
    assert sent(planned.collectives) == {("all-reduce", ("tensor",)): 2 * 8 * 64 * F32 * 3 // 4}
    assert sum(each.flops for each in planned.products) == counted.model / 4
    assert planned.not_understood == ()


def test_a_primitive_that_is_not_in_the_table_is_named():
    assert costs(two_layers, {"up": (UP, P()), "down": (DOWN, P())}, (8, 64), {"data": 2}).not_understood == (
        "mixed",
    )


def test_the_largest_numbers_of_rows_are_known_exact_or_not():
    def largest(state, x):
        return sum(top(x, 4)[0].sum() for top in (jax.lax.top_k, jax.lax.approx_max_k))

    assert costs(largest, {}, (8, 64), {"data": 2}).not_understood == ()


def test_a_primitive_that_holds_a_program_and_is_not_in_the_table_is_named_where_work_is_counted():
    holder = Primitive("holder")
    holder.def_abstract_eval(lambda x, **_: x)
    inner = jax.make_jaxpr(jnp.matmul)(jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert flops(lambda x: holder.bind(x, inside=inner), struct(8)).not_counted == {"holder": 1}


def rule(kind, function, *arguments):
    operations = program_of(jax.make_jaxpr(function)(*arguments)).operations
    return next(operation.rule for operation in operations if operation.kind == kind)


def test_dimensions_before_and_after_those_that_a_reshape_cannot_pair_are_known():
    found = rule("reshape", lambda x: x.reshape(8, 4, 6, 64), struct(8, 6, 4, 64))
    first, *middle, last = found.inputs[0]
    assert (found.outputs[0][0], found.outputs[0][3]) == (first, last)
    assert not {*sum(found.outputs[0][1:3], ())} & {*sum(middle, ())} - found.whole


def test_merged_dimensions_are_known_by_their_parts():
    found = rule("reshape", lambda x: x.reshape(48, 64), struct(8, 6, 64))
    (first,), (second,), (last,) = found.inputs[0]
    assert found.outputs[0] == ((first, second), (last,))
    assert (found.sizes[first], found.sizes[second]) == (8, 6)


def test_what_an_operation_works_along_is_one_dimension_and_must_be_whole():
    found = rule("cumsum", lambda x: jnp.cumsum(x, axis=1), struct(8, 6))
    assert found.inputs == found.outputs
    assert found.whole == {*found.inputs[0][1]}


def test_operands_of_a_barrier_have_nothing_to_do_with_each_other():
    found = rule("optimization_barrier", lambda *xs: jax.lax.optimization_barrier(xs), *[struct(8, 6)] * 2)
    assert found.inputs == found.outputs
    assert not {*sum(found.inputs[0], ())} & {*sum(found.inputs[1], ())}


def test_linear_algebra_keeps_its_matrices_whole():
    found = rule("cholesky", jax.lax.linalg.cholesky, struct(4, 8, 8))
    assert found.whole.isdisjoint(found.inputs[0][0])
    assert found.whole == {*sum(found.inputs[0][1:], ())}
