"""Models that state the shardings of their results, as JAX's documentation teaches."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError

LAYERS, LENGTH, WIDTH, HEADS, HIDDEN, VOCABULARY = 2, 16, 32, 4, 64, 64
ROWS = {"tokens": np.random.default_rng(0).integers(0, VOCABULARY, (64, LENGTH + 1))}
EXAMPLES = ("data", "fsdp")
MESH = "data=2,fsdp=2,tensor=2"


def init(states, key):
    """Return the weights of a decoder, each made where it belongs if the model states shardings."""
    number = itertools.count()

    def made(*shape, spec=P()):
        drawn = functools.partial(jax.random.normal, jax.random.fold_in(key, next(number)), shape)
        return (drawn(out_sharding=spec) if states else drawn()) * shape[0] ** -0.5

    def layer():
        return {
            "qkv": made(WIDTH, 3, HEADS, WIDTH // HEADS, spec=P("fsdp", None, "tensor")),
            "out": made(HEADS, WIDTH // HEADS, WIDTH, spec=P("tensor", None, "fsdp")),
            "up": made(WIDTH, HIDDEN, spec=P("fsdp", "tensor")),
            "down": made(HIDDEN, WIDTH, spec=P("tensor", "fsdp")),
        }

    return {
        "embed": made(VOCABULARY, WIDTH, spec=P("tensor")),
        "layers": [layer() for _ in range(LAYERS)],
        "head": made(WIDTH, VOCABULARY),
    }


def logits(states, params, tokens):
    def product(text, x, w, *spec):
        if not states:
            return jnp.einsum(text, x, w)
        whole = P(*(None if axis == "fsdp" else axis for axis in jax.typeof(w).sharding.spec))
        return jnp.einsum(text, x, jax.sharding.reshard(w, whole), out_sharding=P(EXAMPLES, *spec))

    table = params["embed"].at[tokens]
    x = table.get(out_sharding=P(EXAMPLES)) if states else table.get()
    for layer in params["layers"]:
        q, k, v = jnp.moveaxis(product("btd,dnhk->btnhk", x, layer["qkv"], None, None, "tensor"), 2, 0)
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + product("bthk,hkd->btd", seen, layer["out"])
        hidden = jax.nn.relu(product("btd,dh->bth", x, layer["up"], None, "tensor"))
        x = x + product("bth,hd->btd", hidden, layer["down"])
    return product("btd,dv->btv", x, params["head"])


def losses(states, params, batch):
    scores = logits(states, params, batch["tokens"][:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["tokens"][:, 1:]).mean(-1)


def experiment(workdir, states, mesh, max_steps=6, **settings):
    def measure(params, batch):
        return {"loss": losses(states, params, batch)}

    return mw.Experiment(
        workdir=str(workdir),
        mesh=mesh,
        model=functools.partial(init, states),
        loss=lambda params, batch, key: losses(states, params, batch).mean(),
        optimizer=optax.adam(1e-2),
        input=mw.Input(ROWS, batch_size=16),
        evaluations={"all": mw.Evaluation(measure, ROWS, when=6, batch_size=16)},
        max_steps=max_steps,
        **settings,
    )


@pytest.fixture(scope="module")
def loss(tmp_path_factory):
    """The loss after six steps of the same model without shardings, on other axes."""
    return mw.run(experiment(tmp_path_factory.mktemp("plain"), False, "data=8")).scores["all/loss"]


@pytest.mark.slow
def test_they_train_on_explicit_axes_where_the_model_places_its_weights(tmp_path, loss):
    outcome = mw.run(experiment(tmp_path, True, f"explicit: {MESH}"))
    assert outcome.scores["all/loss"] == pytest.approx(loss, rel=1e-5)
    assert outcome.state.params["layers"][0]["up"].sharding.spec == P("fsdp", "tensor")


@pytest.mark.slow
def test_they_continue_on_other_explicit_axes_with_microbatches(tmp_path, loss):
    mw.run(experiment(tmp_path, True, f"explicit: {MESH}", max_steps=3))
    outcome = mw.run(experiment(tmp_path, True, "explicit: data=1,fsdp=4,tensor=2", microbatches=2))
    assert outcome.scores["all/loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_a_trainer_fits_and_predicts_with_them(tmp_path, loss):
    deployer = mw.Deployer(seed=0, mesh=f"explicit: {MESH}", workdir=tmp_path, verbose=False)
    model = (functools.partial(init, True), functools.partial(logits, True))
    predictor = mw.Predictor(
        deployer, model=model, predict=lambda model, batch: model(batch["tokens"][:, :-1]).argmax(-1)
    )
    trainer = mw.Trainer(
        deployer,
        model=model,
        loss=lambda model, batch: optax.softmax_cross_entropy_with_integer_labels(
            model(batch["tokens"][:, :-1]), batch["tokens"][:, 1:]
        ).mean(),
        optimizer=optax.adam(1e-2),
    )
    trainer.fit(ROWS, batch_size=16, epochs=2)
    preds = predictor.predict(ROWS, 16, trainer.state.params)
    assert np.mean(np.asarray(preds) == ROWS["tokens"][:, 1:]) > 2 / VOCABULARY


def test_a_plan_knows_what_they_send(tmp_path):
    plans = [
        mw.plan.plan_step(experiment(tmp_path, states, mesh), "h100:8", compiled=False)
        for states, mesh in [(True, f"explicit: {MESH}"), (False, MESH)]
    ]
    assert plans[0].model_flops == plans[1].model_flops
    assert {axes for each in plans[0].exchanges for axes in each.axes} == {"data", "fsdp", "tensor"}


def test_without_explicit_axes_the_error_says_what_to_write(tmp_path):
    with pytest.raises(LayoutError, match=f"Write mesh='explicit: {MESH}'"):
        mw.run(experiment(tmp_path, True, MESH))


def test_a_model_that_leaves_shardings_to_xla_is_told_that_the_axes_are_explicit(tmp_path):
    with pytest.raises(Exception, match="sharded") as caught:
        mw.run(experiment(tmp_path, False, f"explicit: {MESH}"))
    assert "needs a mesh without 'explicit:'" in "".join(caught.value.__notes__)
