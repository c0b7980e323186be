"""Methods of a model: an autoencoder in three libraries, and a decoder with a cache in Linen."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import meshwright as mw
from engine.adapters import models
from meshwright.engine._adapters._bound import Bound
from meshwright.engine._adapters._functional import functional
from meshwright.errors import UsageError

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


class NnxVae(nnx.Module):
    width = 2

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.encoder = nnx.Linear(4, 4, rngs=rngs)
        self.decoder = nnx.Linear(2, 4, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs)])

    def encode(self, x):
        return jnp.split(self.encoder(self.norm(x)), 2, axis=-1)

    def decode(self, z):
        return self.decoder(z)

    def __call__(self, x):
        return self.layers[0](self.decode(self.encode(x)[0]))


class LinenVae(linen.Module):
    width: int = 2

    def setup(self):
        self.norm = linen.BatchNorm(momentum=0.5)
        self.encoder, self.decoder = linen.Dense(4), linen.Dense(4)
        self.layers = [linen.Dense(4)]

    def encode(self, x, train):
        x = self.norm(x, use_running_average=not train)
        return jnp.split(self.encoder(x), 2, axis=-1)

    def decode(self, z):
        return self.decoder(z)

    def __call__(self, x, train):
        return self.layers[0](self.decode(self.encode(x, train)[0]))


class EquinoxVae(eqx.Module):
    norm: eqx.nn.BatchNorm
    encoder: eqx.nn.Linear
    decoder: eqx.nn.Linear
    layers: list
    width: int = 2

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch", momentum=0.5)
        self.encoder, self.decoder = eqx.nn.Linear(4, 4, key=key), eqx.nn.Linear(2, 4, key=key)
        self.layers = [eqx.nn.Linear(4, 4, key=key)]

    def encode(self, x, state):
        x, state = self.norm(x, state)
        return jnp.split(self.encoder(x), 2), state

    def decode(self, z):
        return self.decoder(z)

    def __call__(self, x, state):
        (mean, _), state = self.encode(x, state)
        return self.layers[0](self.decode(mean)), state


VAES = {
    "nnx": NnxVae,
    "linen": functional(LinenVae(), X, train=False),
    "equinox": EquinoxVae,
}


def bound(model, *, train=False):
    model = functional(model)
    made = model.init(KEY)
    variables = made if model.stateful else mw.training.Variables(made, None)
    return Bound(model, variables.params, variables.model_state, KEY, train)


@pytest.mark.parametrize("library", VAES)
@pytest.mark.daily(1)
def test_methods_and_modules_of_a_model_are_called_as_the_model_is(library):
    model = bound(VAES[library])
    mean, spread = model.encode(X)
    assert mean.shape == spread.shape == (16, 2)
    by_hand = model.layers[0](model.decode(mean))
    np.testing.assert_allclose(by_hand, model(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(X, method="layers.0")[0], model.layers[0](X)[0], rtol=1e-6)
    assert model.width == 2
    with pytest.raises(AttributeError, match="encodr"):
        model.encodr(X)


@pytest.mark.parametrize("library", VAES)
def test_a_method_moves_the_model_s_state_in_training_alone(library):
    for train in (True, False):
        model = bound(VAES[library], train=train)
        before = jax.tree.map(np.asarray, model.model_state)
        model.encode(X)
        now = jax.tree.leaves(model.model_state)
        assert any((a != b).any() for a, b in zip(jax.tree.leaves(before), now, strict=True)) == train


@pytest.mark.slow
@pytest.mark.parametrize("library", VAES)
def test_a_vae_is_trained_and_its_codes_predicted_by_its_methods(library):
    def loss(model, batch, key):
        mean, log_spread = model.encode(batch["x"])
        z = mean + jnp.exp(log_spread) * jax.random.normal(key, mean.shape)
        divergence = (mean**2 + jnp.exp(2 * log_spread) - 1 - 2 * log_spread).sum(-1) / 2
        return ((model.decode(z) - batch["x"]) ** 2).sum(-1).mean() + 0.01 * divergence.mean()

    deployer = mw.Deployer(0, mesh="data=2,fsdp=2,tensor=2", verbose=False)
    trainer = mw.Trainer(deployer, model=VAES[library], loss=loss, optimizer=optax.adam(0.02))
    options = {"batch_size": 16, "evaluations": {"test": mw.Evaluation("loss", {"x": X})}, "shuffle": False}
    first, last = (trainer.fit({"x": X}, max_steps=steps, **options)["test/loss"] for steps in (1, 60))
    assert last < 0.9 * first
    encode = lambda model, batch: model.encode(batch["x"])[0]
    predictor = mw.Predictor(deployer, model=VAES[library], predict=encode)
    codes = predictor.predict({"x": X}, 2, trainer.params, model_state=trainer.model_state)
    assert np.shape(codes) == (16, 2)


class Cache(linen.Module):
    """The keys and values of the tokens so far, and how many they are."""

    @linen.compact
    def __call__(self, k, v, length):
        kept = self.variable("cache", "kv", lambda: jnp.zeros((2, len(k), length, 8)))
        index = self.variable("cache", "index", lambda: 0)
        kept.value = kept.value.at[:, :, index.value].set(jnp.stack([k, v]))
        index.value += 1
        return kept.value, index.value


class Decoder(linen.Module):
    """Attention over all tokens so far, of one token at a time with a cache or of all at once."""

    def setup(self):
        self.embed, self.qkv, self.head = linen.Embed(11, 8), linen.Dense(24), linen.Dense(11)
        self.cache = Cache()

    def __call__(self, tokens):
        q, k, v = jnp.split(self.qkv(self.embed(tokens)), 3, axis=-1)
        seen = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        scores = jnp.where(seen, jnp.einsum("bqd,bkd->bqk", q, k), -jnp.inf)
        return self.head(jax.nn.softmax(scores) @ v)

    def step(self, token, length):
        q, k, v = jnp.split(self.qkv(self.embed(token)), 3, axis=-1)
        (keys, values), num_tokens = self.cache(k, v, length)
        scores = jnp.einsum("bd,bkd->bk", q, keys)
        scores = jnp.where(jnp.arange(length) < num_tokens, scores, -jnp.inf)
        return self.head(jnp.einsum("bk,bkd->bd", jax.nn.softmax(scores), values))


@pytest.mark.slow
def test_text_is_generated_with_a_cache_of_linen_in_a_predictor():
    def generate(model, batch):
        token, length = batch["start"], 6
        _, cache = model.step(token, length, mutable=["cache"])
        empty = jax.tree.map(jnp.zeros_like, cache)

        def write(carry, _):
            token, cache = carry
            scores, cache = model(token, length, method="step", variables=cache, mutable=["cache"])
            token = scores.argmax(-1).astype(token.dtype)
            return (token, cache), token

        return jnp.moveaxis(jax.lax.scan(write, (token, empty), length=length)[1], 0, 1)

    model = functional(Decoder(), jnp.zeros((1, 6), jnp.int32))
    params = model.init(jax.random.key(3))
    start = np.arange(8, dtype=np.int32)
    predictor = mw.Predictor(mw.Deployer(0, verbose=False), model=model, predict=generate)
    written = np.stack(predictor.predict({"start": start}, 1, params))
    tokens = start[:, None]
    for _ in range(6):
        tokens = np.concatenate([tokens, model.apply(params, tokens)[:, -1:].argmax(-1)], axis=1)
    np.testing.assert_array_equal(written, tokens[:, 1:])


def test_a_pair_of_functions_has_no_methods_and_says_so():
    with pytest.raises(UsageError, match=r"no method 'encode'.*\n.*`params`"):
        bound((models.init, models.apply)).encode(X)


ONE = eqx.nn.Linear(4, 2, key=KEY)


@pytest.mark.parametrize(
    "call", [lambda model: model, lambda model: lambda x: model(x)], ids=["model", "lambda"]
)
def test_a_model_of_one_example_that_the_loss_maps_itself_says_what_to_write(call):
    with pytest.raises(ValueError, match="ndim") as caught:
        jax.vmap(call(bound(ONE)))(X)
    [said] = [note for note in caught.value.__notes__ if "model" in note]
    assert "model(batch['x']), not jax.vmap(model)(batch['x'])" in said
    assert "jax.vmap(net.bind(params), in_axes=(None, 0))(times, batch['x'])" in said
    assert said.endswith("Here its arguments have the shapes [(4,)].")


@pytest.mark.parametrize(
    ("arguments", "found"), [((jnp.ones(()),), r"shapes \[\(\)\]"), ((), "no positional")]
)
def test_a_model_of_one_example_without_examples_says_what_to_write(arguments, found):
    with pytest.raises(UsageError, match=found):
        bound(ONE)(*arguments)


def test_an_nnx_model_may_be_mapped_by_the_loss():
    model = bound(lambda rngs: nnx.Linear(4, 2, rngs=rngs))
    np.testing.assert_allclose(jax.vmap(model)(X), model(X), rtol=1e-6)
