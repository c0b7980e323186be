"""What made `orbax_golden.tar.gz`: small trees, written by three versions of Orbax, of 2023, 2024 and 2026.

    python orbax_golden.py 0.3.5        in an environment with this orbax-checkpoint, and so on
    tar czf orbax_golden.tar.gz 0.3.5 0.5.20 0.12.8

The first two ran with jax 0.4.26, tensorstore 0.1.45 and 0.1.60, the last with jax 0.10.2.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

PARAMS = {
    "w": jnp.arange(16 * 24, dtype=jnp.float32).reshape(16, 24),
    "layers": [jnp.arange(64, dtype=jnp.bfloat16).reshape(8, 8), jnp.zeros(6, jnp.int32)],
}
STATE = {"params": PARAMS, "step": jnp.int32(7), "epoch": 3, "a.b": np.arange(3.0), "none": None}


def main(root: Path) -> None:
    is_new = root.name.startswith("0.12")
    for ocdbt in (True, False):
        for zarr3 in (True, False)[not is_new :]:
            options = {"use_ocdbt": ocdbt} | ({"use_zarr3": True} if zarr3 else {})
            name = f"tree{'_ocdbt' * ocdbt}{'_zarr3' * zarr3}"
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(root / name, STATE)
    if is_new:
        managed(root)


def managed(root: Path) -> None:
    with ocp.CheckpointManager(root / "manager") as manager:
        for step in (9, 10):
            items = {
                "params": ocp.args.StandardSave(PARAMS),
                "state": ocp.args.PyTreeSave({"step": jnp.int32(step)}),
                "data": ocp.args.JsonSave({"position": step}),
            }
            manager.save(step, args=ocp.args.Composite(**items))
    with ocp.CheckpointManager(root / "manager_of_one") as manager:
        manager.save(10, args=ocp.args.StandardSave({"rng": jax.random.key(3), "x": jnp.ones(2)}))
    from orbax.checkpoint.experimental import v1

    v1.save(root / "version_1", STATE)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
