"""A training loop around redco's Deployer and nothing else of it, in the manner of its documents.

With redco's names of arguments it ran with redco 0.4.23's `Deployer`; the tests run it with ours.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import freeze


def examples(size=203):
    inputs = np.random.default_rng(0).normal(size=(size, 8)).astype(np.float32)
    return [{"x": x, "y": x[:3].sum()} for x in inputs]


def collate_fn(examples):
    return {
        "inputs": np.stack([example["x"] for example in examples]),
        "labels": np.array([example["y"] for example in examples]),
    }


def initial_params():
    random = np.random.default_rng(1)
    return freeze(
        {
            "up": {
                "kernel": random.normal(size=(8, 32)).astype(np.float32) / 3,
                "bias": np.zeros(32, np.float32),
            },
            "down": {"kernel": random.normal(size=(32, 1)).astype(np.float32) / 6},
        }
    )


def loss_fn(params, rng, batch):
    inputs, labels = batch["inputs"].reshape(-1, 8), batch["labels"].reshape(-1)
    inputs = inputs + 0.01 * jax.random.normal(rng, inputs.shape)
    hidden = jax.nn.relu(inputs @ params["up"]["kernel"] + params["up"]["bias"])
    return jnp.mean(((hidden @ params["down"]["kernel"])[:, 0] - labels) ** 2)


def train_step(rng, params, opt_state, batch, optimizer):
    loss, grads = jax.value_and_grad(loss_fn)(params, rng, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss}


def make_optimizer(deployer, epochs, per_device_batch_size, microbatches):
    lr_schedule_fn = deployer.get_lr_schedule_fn(
        train_size=len(examples()),
        per_device_batch_size=per_device_batch_size,
        epochs=epochs,
        learning_rate=1e-2,
        schedule_type="linear",
        warmup_ratio=0.1,
        microbatches=microbatches,
    )
    return optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate=lr_schedule_fn)),
        every_k_schedule=microbatches,
    )


def begin(deployer, optimizer):
    """Return parameters and optimizer state, and how far they are: of the last checkpoint, or new."""
    ckpt, info = deployer.load_last_ckpt(optimizer=optimizer, float_dtype=jnp.float32)
    if ckpt is not None:
        return ckpt.pop("params"), ckpt.pop("opt_state"), info
    params = initial_params()
    params_sharding_rules = deployer.get_sharding_rules(params_shape_or_params=params)
    if params_sharding_rules is not None:
        deployer.log_info("\n".join([str(t) for t in params_sharding_rules]), title="Sharding rules")
    params_spec = deployer.get_params_spec(params_shape_or_params=params, rules=params_sharding_rules)
    params = deployer.shard_params(params=params, params_spec=params_spec)
    opt_state_spec = deployer.get_opt_state_spec(
        params_shape_or_params=params, params_spec=params_spec, optimizer=optimizer
    )
    opt_state = deployer.shard_params(
        params=optimizer.init(params), params_spec=opt_state_spec, desc="opt_state"
    )
    return params, opt_state, {"step": 0, "epoch_idx": -1}


def batches_of(deployer, epoch, per_device_batch_size, microbatches):
    return deployer.get_model_input_batches(
        examples=examples(),
        per_device_batch_size=per_device_batch_size,
        collate=collate_fn,
        shuffle=True,
        shuffle_key=deployer.gen_rng(),
        desc=f"Training (epoch {epoch})",
        is_train=True,
        microbatches=microbatches,
    )


def save(deployer, **saved):
    deployer.save_ckpt(ckpt_dir=f"{deployer.workdir}/ckpts/last", **saved)
    with open(f"{deployer.workdir}/ckpts/last_ckpt.txt", "w") as file:  # noqa: PTH123
        file.write("last")


def main(deployer, epochs=3, stop_after=None, batch_size=64, per_device_batch_size=8):
    microbatches = deployer.get_accumulate_grad_batches(
        batch_size=batch_size, per_device_batch_size=per_device_batch_size
    )
    deployer.log_info(microbatches, title="microbatches")
    optimizer = make_optimizer(deployer, epochs, per_device_batch_size, microbatches)
    params, opt_state, info = begin(deployer, optimizer)

    step, losses = info["step"], []
    p_train_step = jax.jit(lambda *args: train_step(*args, optimizer=optimizer), donate_argnums=(1, 2))
    for epoch_idx in range(info["epoch_idx"] + 1, stop_after or epochs):
        epoch = f"{epoch_idx} / {epochs}"
        data_batches = batches_of(deployer, epoch, per_device_batch_size, microbatches)
        for batch in data_batches:
            params, opt_state, metrics = deployer.run_model_step(
                step_fn=p_train_step,
                input_args=(deployer.gen_model_step_rng(), params, opt_state, batch),
            )
            step += 1
            data_batches.set_postfix(**metrics)
            deployer.log_metrics(metrics=metrics, step=step)
            losses.append(metrics["loss"].item())
        save(deployer, params=params, opt_state=opt_state, step=step, epoch_idx=epoch_idx)
    deployer.save_outputs(outputs=[{"loss": loss} for loss in losses], desc="train", step=step)
    return losses
