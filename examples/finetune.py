"""Two ways to fine-tune trained parameters: a new head on a frozen backbone, and LoRA (Hu et al., 2021)."""

import jax
import jax.numpy as jnp
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits


def layer(key, rows, columns):
    return {"w": jax.random.normal(key, (rows, columns)) / rows**0.5, "b": jnp.zeros(columns)}


def init(key):
    backbone, head = jax.random.split(key)
    return {"backbone": layer(backbone, 64, 256), "head": layer(head, 256, 10)}


def with_lora(layer, rank=2):
    rows, columns = layer["w"].shape
    lora_a = jax.random.normal(jax.random.key(1), (rows, rank)) / rows**0.5
    return {**layer, "lora_a": lora_a, "lora_b": jnp.zeros((rank, columns))}


def dense(layer, x):
    out = x @ layer["w"] + layer["b"]
    return out + x @ layer["lora_a"] @ layer["lora_b"] if "lora_a" in layer else out


def loss(params, batch):
    logits = dense(params["head"], jax.nn.relu(dense(params["backbone"], batch["image"])))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}


def trained(name, data, **options):
    trainer = mw.Trainer(deployer, loss=loss, optimizer=optax.adam(1e-2), **options)
    evaluations = {"test": mw.Evaluation("loss", data[1])}
    scores = trainer.fit(data[0], batch_size=64, epochs=5, evaluations=evaluations)
    nbytes = mw.parallel.nbytes(trainer.state.opt_state)
    print(f"{name}: accuracy {scores['test/accuracy']:.4f}, optimizer state {nbytes:,} bytes")
    return trainer.params


deployer = mw.Deployer(seed=0, mesh="fsdp=-1")
upright = digits()
upside_down = [{**part, "image": part["image"][:, ::-1]} for part in upright]
base = trained("all parameters, upright", upright, params=init(jax.random.key(0)))
lora = {name: with_lora(layer) for name, layer in base.items()}
trained("head, upside down", upside_down, params=base, trainable="head/.*")
trained("LoRA, upside down", upside_down, params=lora, trainable="lora_[ab]")
