"""A convolutional network with batch normalisation, whose moving statistics are updated, in Flax Linen."""

import optax
from flax import linen as nn

import meshwright as mw
from meshwright.cli.demo.digits import digits


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):  # Meshwright sets `train` to True in training
        x = x.reshape(-1, 8, 8, 1)
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), strides=2, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return nn.Dense(10)(x.mean((1, 2)))


def loss(model, batch):
    logits = model(batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}


train, test = digits()
deployer = mw.Deployer(seed=0, mesh="data=-1")
net = mw.functional(Net(), train["image"])
trainer = mw.Trainer(deployer, model=net, loss=loss, optimizer=optax.adam(1e-2))
evaluations = {"test": mw.Evaluation("loss", test)}
scores = trainer.fit(train, batch_size=64, epochs=5, evaluations=evaluations)
print(f"loss {scores['test/loss']:.6f} accuracy {scores['test/accuracy']:.4f}")
print("statistics:", ", ".join(mw.parallel.leaf_names(trainer.model_state)))
