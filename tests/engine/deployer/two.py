"""A program of two processes around a deployer, as a person would start it: it says what it saw."""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"

import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.errors import MeshwrightError

where, me = Path(sys.argv[1]), int(os.environ["JAX_PROCESS_ID"])
said = {}

deployer = mw.Deployer(seed=0, mesh="data=-1,tensor=2", workdir=where / "shared")
said["sizes"] = [
    one.get_local_global_micro_batch_size(3) for one in (deployer, mw.Deployer(seed=0, num_model_shards=4))
]
said["rng"] = jax.random.key_data(deployer.gen_model_step_rng()).tolist()

collated = []


def collate(examples):
    collated.append([int(x) for x in examples])
    return {"x": np.stack(examples)}


batches = deployer.get_model_input_batches(np.arange(20), 3, collate, False, None, "Evaluating")
said["sums"] = [int(deployer.run_model_step(jax.jit(lambda x: x.sum()), (batch["x"],))) for batch in batches]
said["collated"] = collated

tx = optax.adam(1e-3)
params = deployer.shard_params({"w": np.arange(8.0)}, {"w": jax.P("data")})
for step in range(3):
    deployer.save_ckpt("last", params, tx.init(params), step=step)
    ckpt, info = deployer.load_last_ckpt(optimizer=tx, rules=[mw.parallel.match("w", "data")])
    shards = ckpt["params"]["w"].addressable_shards
    said[f"loaded {step}"] = [info["step"], np.concatenate([x.data for x in shards]).tolist()]
deployer.log_metrics({"loss": 1.0}, step=1)

own = where / f"disk-{me}"
own.mkdir()
os.chdir(own)
apart = mw.Deployer(seed=0, workdir="run")
trainer = mw.Trainer(
    apart, params={"w": np.ones(2)}, loss=lambda params, batch: params["w"].sum(), optimizer=tx
)
said["refused"] = []
for use in (
    apart.load_last_ckpt,
    lambda: apart.save_ckpt("last", params),
    lambda: apart.save_ckpt(f"{apart.workdir}/ckpts/last", params),
    lambda: trainer.fit({"x": np.ones(8)}, per_device_batch_size=1, epochs=1),
    lambda: deployer.load_ckpt("none"),
):
    try:
        use()
    except MeshwrightError as error:
        said["refused"].append(f"{type(error).__name__}: {error}")
(where / f"{me}.json").write_text(json.dumps(said))
