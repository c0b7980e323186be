"""Whether rows of a batch meet in a loss, read from its program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.models.cases import CASES
from flax import nnx

import meshwright as mw
from engine.adapters.models import EquinoxNorm, LinenNorm, NnxNorm
from meshwright.engine._functions import loss_of
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.parallel._meeting import meeting

N = 16
PARAMS = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
BATCH = {"x": jnp.ones((N, 4)), "y": jnp.arange(N) % 4, "weight": jnp.ones(N)}


def met(loss, params=PARAMS, batch=BATCH):
    jaxpr = jax.make_jaxpr(loss)(params, batch)
    start = len(jax.tree.leaves(params))
    return meeting(jaxpr, slice(start, start + len(jax.tree.leaves(batch))), slice(None))


def scores(params, batch):
    return batch["x"] @ params["w"] + params["b"]


def each(params, batch):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, batch), batch["y"])


def normed(x, axis):
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 1e-5)


def picked(params, batch):
    return -jax.nn.log_softmax(scores(params, batch))[jnp.arange(N), batch["y"]].mean()


def of_pairs(params, batch):
    both = jnp.concatenate([batch["x"], batch["x"] + 1])
    one, other = jnp.split(both @ params["w"], 2)
    return ((one - other) ** 2).mean()


def recurrent(params, batch):
    step = lambda h, _: (jnp.tanh(h @ params["w"]), None)
    return (jax.lax.scan(step, batch["x"], None, length=3)[0] ** 2).mean()


def penalised(params, batch):
    slopes = jax.grad(lambda x: (x @ params["w"]).sum())(batch["x"])
    return ((jnp.linalg.norm(slopes, axis=-1) - 1) ** 2).mean()


def mixed(params, batch):
    block, experts = lambda w, rows, dot: dot(rows, w), jnp.stack([params["w"]] * 4)
    return (mw.nn.moe(block, experts, batch["x"], scores(params, batch), top_k=1)[0] ** 2).mean()


APART = [
    lambda p, b: ((scores(p, b) - 1) ** 2).mean(),
    lambda p, b: each(p, b).mean() + 0.1 * (p["w"] ** 2).sum(),
    lambda p, b: (each(p, b) * b["weight"]).sum() / b["weight"].sum(),
    lambda p, b: (each(p, b) * b["weight"]).sum() / jnp.maximum(b["weight"].sum(), 1),
    lambda p, b: jnp.where(b["weight"].sum() > 0, (each(p, b) * b["weight"]).sum() / b["weight"].sum(), 0.0),
    lambda p, b: (each(p, b) * (b["weight"] / b["weight"].sum())).sum(),
    lambda p, b: jnp.mean(each(p, b), where=b["weight"] > 0),
    lambda p, b: jax.tree.leaves(mw.Mean.of(each(p, b), b["weight"])),
    lambda p, b: normed(scores(p, b), -1).mean(),
    lambda p, b: jax.lax.map(lambda x: (x @ p["w"]).sum(), b["x"]).mean(),
    lambda p, b: jax.vmap(lambda x, y: jax.nn.log_softmax(x @ p["w"])[y])(b["x"], b["y"]).mean(),
    lambda p, b: jax.lax.cond(p["b"][0] > 0, lambda: each(p, b).mean(), lambda: 2 * each(p, b).mean()),
    lambda p, b: (scores(p, b) * jax.random.bernoulli(jax.random.key(0), 0.5, (N, 4))).mean(),
    picked,
    of_pairs,
    recurrent,
    penalised,
    mixed,
]


@pytest.mark.parametrize("loss", APART)
def test_rows_do_not_meet_in_a_mean_over_rows_with_or_without_weights(loss):
    assert not met(loss)


@pytest.mark.parametrize("name", CASES)
def test_rows_do_not_meet_in_usual_models(name):
    case = CASES[name]()
    assert not met(case.loss, case.params, case.batch)


def contrastive(params, batch):
    logits = scores(params, batch) @ batch["x"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(N)).mean()


def of_two_views(params, batch):
    both = jnp.concatenate([scores(params, batch), batch["x"]])
    logits = both @ both.T - 1e9 * jnp.eye(2 * N)
    return optax.softmax_cross_entropy_with_integer_labels(logits, (jnp.arange(2 * N) + N) % (2 * N)).mean()


def balanced(params, batch):
    chances = jax.nn.softmax(scores(params, batch))
    loads = jax.nn.one_hot(chances.argmax(-1), 4).mean(0)
    return each(params, batch).mean() + (loads * chances.mean(0)).sum()


def tuned_within(params, batch):
    slopes = jax.grad(lambda params: each(params, batch).mean())(params)
    return each(jax.tree.map(jnp.subtract, params, slopes), batch).mean()


MEETING = {
    "dot_general": [contrastive, of_two_views, tuned_within],
    "sub": [
        lambda p, b: (each(p, b) * normed(b["weight"], 0)).mean(),
        lambda p, b: normed(scores(p, b), 0).mean(),
    ],
    "mul": [balanced],
    "sqrt": [lambda p, b: jnp.sqrt(((scores(p, b) - 1) ** 2).mean())],
    "sort": [lambda p, b: jnp.sort(each(p, b))[:4].mean()],
    "integer_pow": [lambda p, b: ((scores(p, b).T @ b["x"] / N - jnp.eye(4)) ** 2).sum()],
    "gather": [lambda p, b: (scores(p, b) - scores(p, b)[b["y"]]).mean()],
}


@pytest.mark.parametrize(("operation", "loss"), [(name, loss) for name in MEETING for loss in MEETING[name]])
def test_the_operation_in_which_rows_meet_is_named(operation, loss):
    assert met(loss).replace("square", "integer_pow") == operation


TOKENS = np.ones((16, 16), np.int32)
SIZES = {"vocabulary": 64, "model": 32, "layers": 2, "heads": 2, "feed_forward": 64}


@pytest.mark.parametrize(
    ("module", "more", "operation"),
    [(decoder, {}, ""), (decoder, {"experts": 4}, "mul"), (gpt2, {"positions": 16}, ""), (t5, {}, "")],
)
def test_of_our_models_rows_meet_only_in_the_one_whose_experts_are_balanced(module, more, operation):
    cfg = module.Config(**SIZES, **more)
    params = jax.eval_shape(lambda key: module.init(cfg, key), jax.random.key(0))
    batch = {"inputs": TOKENS, "targets": TOKENS} if module is t5 else {"tokens": TOKENS, "segments": TOKENS}
    loss = lambda params, batch: jax.tree.leaves(module.loss(cfg, params, batch))
    assert met(loss, params, batch) == operation


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        lambda: mw.functional(LinenNorm(), BATCH["x"]),
        lambda: mw.functional(NnxNorm(nnx.Rngs(0))),
        lambda: mw.functional(eqx.nn.make_with_state(EquinoxNorm)(jax.random.key(0))),
    ],
    ids=["linen", "nnx", "equinox"],
)
def test_rows_meet_in_batch_normalisation_that_is_trained(model, train):
    made = model()
    variables = made.init(jax.random.key(0))
    loss = loss_of(lambda model, batch: (model(batch["x"]) ** 2).mean(), made, train=train, has_state=True)
    of_batch = lambda params, batch: loss(params, batch, jax.random.key(1), variables.model_state)[0]
    assert bool(met(of_batch, variables.params)) == train
