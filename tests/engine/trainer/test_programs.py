"""The programs that RedCoast's examples are, small: each trains what it is about."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from PIL import Image

import meshwright as mw
from engine.trainer.runs import by_loss, deployer, reports
from meshwright.lm._models import gpt2

pytestmark = pytest.mark.slow  # whole programs, of parts that other tests try

RNG = np.random.default_rng(0)


def mlp(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def mlp_params(seed=0, outputs=1):
    up, down = jax.random.split(jax.random.key(seed))
    return {"up": jax.random.normal(up, (2, 16)), "down": 0.1 * jax.random.normal(down, (16, outputs))}


def test_meta_learning_trains_what_one_step_on_a_task_makes_good():
    slopes = RNG.uniform(-2, 2, size=(64, 1, 1))
    x = RNG.normal(size=(64, 8, 2)).astype(np.float32)
    x[..., 1] = 1
    tasks = {"x": x, "y": (slopes * x[..., :1]).astype(np.float32)}

    def task_loss(params, x, y):
        return ((mlp(params, x) - y) ** 2).mean()

    def adapted_loss(params, x, y):  # the first half of a task adapts, the second one judges
        grads = jax.grad(task_loss)(params, x[:4], y[:4])
        return task_loss(jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x[4:], y[4:])

    def loss(params, batch):
        return jax.vmap(adapted_loss, (None, 0, 0))(params, batch["x"], batch["y"]).mean()

    trainer = mw.Trainer(deployer(), params=mlp_params(), loss=loss, optimizer=optax.adam(1e-2))
    before = trainer.evaluate(mw.Evaluation("loss", tasks))["loss"]
    after = trainer.fit(tasks, batch_size=32, epochs=60, evaluations=by_loss(tasks, when=120))["eval/loss"]
    unadapted = jax.vmap(task_loss, (None, 0, 0))(jax.device_get(trainer.params), tasks["x"], tasks["y"])
    assert after < before * 0.6
    assert after < unadapted.mean() / 2


def clipped(grads, most=1.0):
    norm = optax.tree.norm(grads)
    return jax.tree.map(lambda g: g * jnp.minimum(1, most / norm), grads)


def test_with_differential_privacy_each_example_s_gradient_is_clipped_by_itself():
    examples = {"x": RNG.normal(size=(32, 2)).astype(np.float32), "y": np.arange(32, dtype=np.float32)}

    def of_one(params, x, y):
        return (mlp(params, x)[0] - y) ** 2

    tx = optax.contrib.differentially_private_aggregate(l2_norm_clip=1.0, noise_multiplier=0.0, key=0)
    tx = optax.chain(tx, optax.sgd(0.1))

    def train_step(state, batch):
        of_each = jax.vmap(jax.value_and_grad(of_one), (None, 0, 0))
        losses, grads = of_each(state.params, batch["x"], batch["y"])
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state)
        return new, {"loss": losses.mean()}

    params = mlp_params()
    trainer = mw.Trainer(deployer(), params=params, train_step=train_step, optimizer=tx)
    trainer.fit(examples, batch_size=32, max_steps=1, shuffle=False)
    each = [clipped(jax.grad(of_one)(params, x, y)) for x, y in zip(*examples.values(), strict=True)]
    expected = jax.tree.map(lambda p, *grads: p - 0.1 * sum(grads) / 32, params, *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), trainer.params, expected)


def test_a_low_rank_adapter_learns_beside_a_frozen_model_that_is_split():
    base = {"q": RNG.normal(size=(8, 8)).astype(jnp.bfloat16)}
    lora = {"a": RNG.normal(size=(8, 2)).astype(np.float32), "b": np.zeros((2, 8), np.float32)}
    x = RNG.normal(size=(64, 8)).astype(np.float32)
    examples = {"x": x, "y": x @ (np.float32(base["q"]) + lora["a"] @ RNG.normal(size=(2, 8)))}

    def loss(params, batch):
        weight = params["model"]["q"].astype(jnp.float32) + params["lora"]["a"] @ params["lora"]["b"]
        return ((batch["x"] @ weight - batch["y"]) ** 2).mean()

    shared = deployer(mesh="data=-1,tensor=2")
    trainer = mw.Trainer(
        shared,
        params={"model": base, "lora": lora},
        loss=loss,
        optimizer=optax.adam(3e-2),
        rules={"model": [mw.parallel.match("q", None, "tensor")], "lora": None},
        trainable="lora/.*",
    )
    scores = trainer.fit(examples, batch_size=32, epochs=150, evaluations=by_loss(examples, when=300))
    assert scores["eval/loss"] < 1e-2
    assert trainer.params["model"]["q"].sharding.spec == jax.sharding.PartitionSpec(None, "tensor")
    assert np.array_equal(trainer.params["model"]["q"], base["q"])


def test_two_networks_against_each_other_have_an_optimizer_each(tmp_path):
    real = {"x": RNG.normal(loc=(3.0, -2.0), scale=0.1, size=(128, 2)).astype(np.float32)}
    tx = mw.training.by_path([("made/.*", optax.adam(1e-2, b1=0.5)), ("judged/.*", optax.adam(1e-2, b1=0.5))])

    def train_step(state, batch, key):
        noise = jax.random.normal(key, batch["x"].shape)

        def losses(params):
            fake = mlp(params["made"], noise.at[:, 1].set(1))
            judged = lambda judge, x: mlp(judge, x)[:, 0]
            fixed = jax.lax.stop_gradient(params["judged"])
            made = jax.nn.softplus(-judged(fixed, fake)).mean()
            told_real = jax.nn.softplus(-judged(params["judged"], batch["x"])).mean()
            told_fake = jax.nn.softplus(judged(params["judged"], jax.lax.stop_gradient(fake))).mean()
            return made + told_real + told_fake, {"made": made, "judged": told_real + told_fake}

        grads, found = jax.grad(losses, has_aux=True)(state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state), found

    params = {"made": mlp_params(0, outputs=2), "judged": mlp_params(1)}
    trainer = mw.Trainer(deployer(tmp_path), params=params, train_step=train_step, optimizer=tx)
    trainer.fit(real, batch_size=64, epochs=150, logging=mw.Logging(every=10), save=mw.Save(when=300))
    noise = np.stack([RNG.normal(size=256), np.ones(256)], axis=-1)
    made = mlp(jax.device_get(trainer.params["made"]), noise)
    assert np.abs(np.asarray(made).mean(0) - [3.0, -2.0]).max() < 1.0  # it was 3 before
    assert len(reports(tmp_path, "judged")) == len(reports(tmp_path, "made")) > 0


def test_images_are_made_from_text_by_removing_noise_and_come_as_pictures():
    words = ["dark", "bright"]
    dark, bright = (
        {"text": word, "image": np.full((4, 4), x)} for word, x in zip(words, (-1, 1), strict=True)
    )
    examples = [dark, bright] * 32

    def collate(examples):
        texts = np.array([words.index(each["text"]) for each in examples], np.int32)
        return {"text": texts} | (
            {"image": np.stack([each["image"] for each in examples]).astype(np.float32)}
            if "image" in examples[0]
            else {}
        )

    class Denoiser(linen.Module):
        @linen.compact
        def __call__(self, noisy, level, text):
            known = [noisy.reshape(-1, 16), level[:, None], linen.Embed(2, 8)(text)]
            hidden = linen.relu(linen.Dense(64)(jnp.concatenate(known, -1)))
            return linen.Dense(16)(hidden).reshape(-1, 4, 4)

    def mixed(image, noise, level):
        return (1 - level[:, None, None]) * image + level[:, None, None] * noise

    def loss(model, batch, key):
        for_noise, for_level = jax.random.split(key)
        level = jax.random.uniform(for_level, batch["text"].shape)
        noisy = mixed(batch["image"], jax.random.normal(for_noise, batch["image"].shape), level)
        return ((model(noisy, level, batch["text"]) - batch["image"]) ** 2).mean()

    def predict(model, batch, key):
        def less(image, level):
            levels = jnp.full(batch["text"].shape, level)
            return image + 0.25 / level * (model(image, levels, batch["text"]) - image), None

        noise = jax.random.normal(key, (*batch["text"].shape, 4, 4))
        return jax.lax.scan(less, noise, jnp.array([1.0, 0.75, 0.5, 0.25]))[0]

    def pictures(preds):
        return [Image.fromarray(np.uint8(127.5 * (np.clip(x, -1, 1) + 1)), "L") for x in preds]

    example = (jnp.zeros((1, 4, 4)), jnp.zeros(1), jnp.zeros(1, jnp.int32))
    model, shared = mw.functional(Denoiser(), *example), deployer()
    options = {"model": model, "collate": collate}
    trainer = mw.Trainer(shared, loss=loss, optimizer=optax.adam(1e-2), **options)
    trainer.fit(examples, batch_size=32, epochs=100)
    predictor = mw.Predictor(shared, predict=predict, output=pictures, **options)
    asked = [{"text": word} for word in ("bright", "dark", "bright")]
    made = predictor.predict(asked, 1, trainer.params)
    assert [picture.size for picture in made] == [(4, 4)] * 3
    assert [np.asarray(picture).mean() > 127 for picture in made] == [True, False, True]


def test_an_actor_follows_a_critic_that_learns_from_a_growing_buffer():
    """DDPG on one step: the reward is highest where the action is the state's negative."""

    def actor(params, state):
        return mlp(params["actor"], jnp.concatenate([state, jnp.ones_like(state)], -1))

    def critic(params, state, action):
        features = jnp.concatenate([state, action, state**2, action**2, state * action], -1)
        return (features @ params["critic"])[:, 0]

    def loss(params, batch):
        judged = critic(params, batch["state"], batch["action"])
        fixed = params | {"critic": jax.lax.stop_gradient(params["critic"])}
        hoped = critic(fixed, batch["state"], actor(params, batch["state"]))
        return ((judged - batch["reward"]) ** 2).mean() - 0.1 * hoped.mean()

    shared = deployer()
    optimizer = mw.training.by_path([("actor/.*", optax.adam(1e-2)), ("critic", optax.adam(3e-2))])
    params = {"actor": mlp_params(), "critic": np.zeros((5, 1), np.float32)}
    trainer = mw.Trainer(shared, params=params, loss=loss, optimizer=optimizer)
    empty = {name: np.zeros((0, *shape), np.float32) for name, shape in SHAPES.items()}
    for each in shared.rounds(12, carry=empty):
        state = RNG.uniform(-1, 1, size=(64, 1)).astype(np.float32)
        action = np.asarray(actor(trainer.params, state)) + 0.5 * RNG.normal(size=state.shape)
        played = {"state": state, "action": action, "reward": -((action + state) ** 2)[:, 0]}
        each.carry = {name: np.float32(np.append(each.carry[name], played[name], axis=0)) for name in played}
        trainer.fit(each.carry, batch_size=64, epochs=None, max_steps=40)
    state = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    assert np.abs(np.asarray(actor(trainer.params, state)) + state).mean() < 0.25


SHAPES = {"state": (1,), "action": (1,), "reward": ()}


def test_examples_of_an_epoch_may_be_made_by_the_parameters_of_the_one_before():
    shared, asked = deployer(), []
    x = RNG.normal(size=(32, 2)).astype(np.float32)
    trainer = mw.Trainer(
        shared,
        params={"w": np.zeros((2, 1), np.float32)},
        loss=lambda params, batch: (((batch["x"] @ params["w"])[:, 0] - batch["y"]) ** 2).mean(),
        optimizer=optax.sgd(0.1),
    )
    predictor = mw.Predictor(shared, predict=lambda params, batch: (batch["x"] @ params["w"])[:, 0])

    def one_more(epoch):
        made = np.array(predictor.predict({"x": x}, 4, trainer.params))
        asked.append(float(np.abs(made).mean()))
        return [{"x": row, "y": y + 1} for row, y in zip(x, made, strict=True)]

    trainer.fit(one_more, batch_size=32, epochs=3)
    assert asked[0] == 0.0
    assert len(asked) == 3
    assert trainer.step == 3


def test_examples_without_labels_are_judged_by_predictions_between_two_calls():
    x = RNG.normal(size=(32, 2)).astype(np.float32)
    shared = deployer()
    trainer = mw.Trainer(
        shared,
        params={"w": np.zeros((2, 1), np.float32)},
        loss=lambda params, batch: (((batch["x"] @ params["w"])[:, 0] - batch["y"]) ** 2).mean(),
        optimizer=optax.sgd(0.1),
    )
    predictor = mw.Predictor(shared, predict=lambda params, batch: (batch["x"] @ params["w"])[:, 0])
    prompts, far = {"x": x[:5]}, []
    for _ in range(3):
        trainer.fit({"x": x, "y": x.sum(1)}, batch_size=32, epochs=5)
        made = np.array(predictor.predict(prompts, 1, trainer.params))
        far.append(np.abs(made - prompts["x"].sum(1)).mean())
    assert far[0] > far[1] > far[2]
    assert trainer.step == 15


TEXT = RNG.integers(0, 16, size=(96, 8)).astype(np.int32)
REVIEWS = {"text": TEXT, "label": (TEXT[:, 0] >= 8).astype(np.int32)}
CONFIG = gpt2.Config(vocabulary=16, positions=8, model=32, layers=1, heads=4, feed_forward=64)


def classified(mesh):
    """The scores of a transformer that says of which kind texts are."""

    def loss(params, batch):
        logits = gpt2.features(CONFIG, params["model"], batch["text"]).mean(1) @ params["head"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}

    params = {"model": gpt2.init(CONFIG, jax.random.key(0)), "head": np.zeros((32, 2), np.float32)}
    shared = deployer(mesh=mesh)
    rules = {"model": shared.get_sharding_rules(params["model"]), "head": None}
    trainer = mw.Trainer(shared, params=params, loss=loss, optimizer=optax.adam(3e-3), rules=rules)
    return trainer.fit(REVIEWS, batch_size=32, epochs=3, evaluations=by_loss(REVIEWS, when=9))


def test_a_classifier_of_texts_learns_alike_however_its_transformer_is_split():
    whole, split = classified("data=-1"), classified("data=-1,tensor=4")
    assert whole["eval/accuracy"] > 0.6
    assert split["eval/loss"] == pytest.approx(whole["eval/loss"], rel=1e-3)
