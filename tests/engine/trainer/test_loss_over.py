import jax
import numpy as np
import optax

import meshwright as mw


def test_each_device_computes_its_share_of_the_loss():
    seen = []

    def loss(params, batch, train):
        if not train:
            see = lambda sharding: seen.append(sharding.shard_shape(batch["x"].shape))
            jax.debug.inspect_array_sharding(batch["x"] * 2, callback=see)
        return (batch["x"] @ params["w"]).mean()

    deployer = mw.Deployer(seed=0, mesh="data=4,tensor=2", verbose=False)
    params, rules = {"w": np.ones(4, np.float32)}, (mw.parallel.match("w", "tensor"),)
    trainer = mw.Trainer(deployer, loss=loss, optimizer=optax.sgd(0.1), params=params, rules=rules)
    examples = {"x": np.ones((16, 4), np.float32)}
    trainer.fit(examples, 4, 1, evaluations={"eval": mw.Evaluation("loss", examples)})
    assert set(seen) == {(4, 4)}
