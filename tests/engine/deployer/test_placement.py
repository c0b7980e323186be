import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict, freeze
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError, UsageError

RULES = [mw.parallel.match("hidden/w", "fsdp", "tensor"), mw.parallel.match("out/w", "tensor")]


@pytest.fixture
def deployer(make_deployer):
    return make_deployer(mesh="data=2,fsdp=2,tensor=2")


def specs(tree):
    return mw.base._internal.named_leaves(tree, is_leaf=lambda x: isinstance(x, P))


def test_specs_are_those_of_the_rules_and_without_rules_all_is_whole(deployer, params):
    found = specs(deployer.get_params_spec(params_shape_or_params=params, rules=RULES))
    assert found == {"hidden/b": P(), "hidden/w": P("fsdp", "tensor"), "out/w": P("tensor"), "table": P()}
    whole = deployer.get_params_spec(params, None)
    assert set(specs(whole).values()) == {P()}
    assert isinstance(deployer.get_params_spec(freeze(params), RULES), FrozenDict)


def test_rules_may_be_a_dictionary_of_those_of_several_models(deployer, params):
    both = {"encoder": params, "decoder": params, "frozen": params}
    rules = {
        "encoder": [mw.parallel.match("params/hidden/w", "fsdp")],
        "decoder": [mw.parallel.match("hidden/w", None, "tensor")],
    }
    found = specs(deployer.get_params_spec(both, {**rules, "frozen": None}))
    assert {name: spec for name, spec in found.items() if spec != P()} == {
        "encoder/hidden/w": P("fsdp"),
        "decoder/hidden/w": P(None, "tensor"),
    }
    with pytest.raises(UsageError, match=r"'encodr', .*Did you mean 'encoder'"):
        deployer.get_params_spec(both, {"encodr": None})


def test_what_is_no_rule_and_what_does_not_fit_are_told(deployer, params):
    with pytest.raises(UsageError, match=r"is not a sharding rule.\n.*mw.parallel.match\("):
        deployer.get_params_spec(params, [(("hidden", "w"), P("mp"))])
    with pytest.raises(LayoutError, match="hidden/w"):
        deployer.get_params_spec({"hidden": {"w": np.ones((3, 3))}}, RULES[:1])


def test_rules_that_are_found_can_be_printed_changed_and_given_back(make_deployer):
    deployer = make_deployer(mesh="fsdp=8")
    params = {
        "embedding": jax.ShapeDtypeStruct((4096, 64), "float32"),
        "b": jax.ShapeDtypeStruct((64,), "float32"),
    }
    rules = deployer.get_sharding_rules(params_shape_or_params=params)
    assert [str(rule) for rule in rules] == [f"params/embedding: {P('fsdp')}"]
    assert specs(deployer.get_params_spec(params, rules)) == {"embedding": P("fsdp"), "b": P()}
    [(name, _)] = rules
    assert deployer.layout(*rules).spec(name, params["embedding"]) == P("fsdp")
    assert deployer.get_sharding_rules({"b": params["b"]}) is None
    assert make_deployer().get_sharding_rules(params) is None


def test_where_no_rule_is_found_that_is_what_a_trainer_and_a_predictor_take(make_deployer):
    deployer, params = make_deployer(), {"w": np.ones(4, np.float32)}
    rules = deployer.get_sharding_rules(params)
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"] * params["w"], rules=rules)
    assert [*map(list, predictor.predict([{"x": np.ones(4)}] * 8, 1, params))] == [[1.0] * 4] * 8
    loss = lambda params, batch: (params["w"] * batch["x"]).sum()
    mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.sgd(0.1), rules=rules)


def test_a_trainer_and_a_predictor_take_a_dictionary_of_rules_by_model(deployer):
    params = {"model": {"w": np.ones((8, 4), np.float32)}, "lora": {"w": np.ones((8, 4), np.float32)}}
    rules = {"model": [mw.parallel.match("params/w", "fsdp", "tensor")], "lora": None}
    loss = lambda params, batch: (batch["x"] @ (params["model"]["w"] + params["lora"]["w"])).mean()
    trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.adam(0.1), rules=rules)
    trainer.fit({"x": np.ones((16, 8), np.float32)}, 1, 1)
    assert trainer.params["model"]["w"].sharding.spec == P("fsdp", "tensor")
    seen = lambda params, batch: batch["x"] @ params["model"]["w"]
    predictor = mw.Predictor(deployer, predict=seen, rules=rules)
    assert len(predictor.predict({"x": np.ones((8, 8), np.float32)}, 1, params)) == 8
    mistyped = {"modl": None, "lora": None}
    for refused in (
        lambda: (
            mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.sgd(0.1), rules=mistyped).layout
        ),
        lambda: mw.Predictor(deployer, predict=seen, rules=mistyped).predict(
            {"x": np.ones((8, 8))}, 1, params
        ),
    ):
        with pytest.raises(UsageError, match=r"sharding rules are given for 'modl', .*Did you mean 'model'"):
            refused()


class Tensor:
    """An array with a dtype of its own, as PyTorch's tensors have, which are read in one of two ways."""

    def __init__(self, array, dtype):
        self._array, self.shape, self._has_gradient = array, array.shape, True
        self.dtype = type("dtype", (), {"__str__": lambda _: f"torch.{dtype}"})()

    def detach(self):
        detached = Tensor(self._array, str(self.dtype).removeprefix("torch."))
        detached._has_gradient = False
        return detached

    def __array__(self, dtype=None, copy=None):
        if self._has_gradient or "bfloat16" in str(self.dtype):
            raise RuntimeError("Can't call numpy() on this Tensor")
        return np.asarray(self._array)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_tensors_of_another_library_are_taken_for_arrays(make_deployer, tmp_path):
    deployer = make_deployer(mesh="data=2,fsdp=2,tensor=2", workdir=tmp_path)
    half = jnp.full(4, 1.5, jnp.bfloat16)
    tensors = {"w": Tensor(np.ones((8, 4), np.float32), "float32"), "b": Tensor(half, "bfloat16")}
    placed = deployer.shard_params(
        tensors, deployer.get_params_spec(tensors, [mw.parallel.match("w", "tensor")])
    )
    assert (placed["w"].sharding.spec, placed["b"].dtype) == (P("tensor"), jnp.bfloat16)
    deployer.save_ckpt("pretrained", tensors)
    assert np.asarray(deployer.load_ckpt("pretrained")[0]["params"]["b"]).tolist() == [1.5] * 4
    called = lambda params, batch: batch["x"] @ params["w"] + params["b"]
    data = {"x": np.ones((8, 8), np.float32)}
    assert (
        np.stack(mw.Predictor(deployer, predict=called).predict(data, 1, tensors)).tolist() == [[9.5] * 4] * 8
    )
    loss = lambda params, batch: (called(params, batch) ** 2).mean()
    trainer = mw.Trainer(deployer, params=tensors, loss=loss, optimizer=optax.sgd(0.1))
    trainer.fit(data, 1, 1)
    assert float(trainer.params["w"].max()) < 1


def test_what_is_no_array_or_cannot_be_read_is_named(deployer):
    unreadable = Tensor(np.ones(2), "float8")
    unreadable.detach = lambda: unreadable
    with pytest.raises(
        UsageError, match=r"params/w, of type Tensor and dtype torch.float8, cannot .*\n.*\.numpy\(\)"
    ):
        deployer.shard_params({"w": unreadable}, {"w": P()})
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"])
    with pytest.raises(UsageError, match=r"params is not an array; it is of type str.\n.*load_ckpt"):
        predictor.predict({"x": np.ones(8)}, 1, "ckpts/best")


@pytest.mark.parametrize("make", [optax.masked, lambda tx, labels: optax.multi_transform({True: tx}, labels)])
def test_labels_of_another_kind_of_dictionary_are_told_so(deployer, make):
    params = {"w": np.ones(4, np.float32)}
    tx = make(optax.adam(1e-3), freeze({"w": True}))
    loss = lambda params, batch: (batch["x"] * params["w"]).mean()
    trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=tx)
    specs = lambda: deployer.get_opt_state_spec(params, deployer.get_params_spec(params, None), tx)
    for refused in (specs, lambda: trainer.fit({"x": np.ones((8, 4))}, 1, 1)):
        with pytest.raises(UsageError, match=r"are a (Frozen)?[dD]ict, but .* a .*[dD]ict(.|\n)*unfreeze"):
            refused()


@pytest.mark.parametrize("optimizer", [optax.adam, "nnx"])
def test_what_is_no_optimizer_of_optax_is_told_so(deployer, optimizer):
    if optimizer == "nnx":
        optimizer = nnx.Optimizer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param)
    trainer = mw.Trainer(
        deployer, params={"w": np.ones(4)}, train_step=lambda state, batch: 0, optimizer=optimizer
    )
    with pytest.raises(UsageError, match=r"must be an optax transformation, but .* Give optax.adamw\(1e-3\)"):
        trainer.fit({"x": np.ones((8, 4))}, 1, 1)


W, B = ("fsdp", "tensor"), ()
OPTIMIZERS = {
    "adamw": (optax.adamw(1e-3), {"0/mu/hidden/w": W, "0/nu/hidden/w": W, "0/mu/hidden/b": B, "0/count": B}),
    "lion": (optax.lion(1e-3), {"0/mu/hidden/w": W, "0/mu/hidden/b": B}),
    "adafactor": (
        optax.adafactor(1e-3, min_dim_size_to_factor=8),
        {"0/v_row/hidden/w": ("tensor",), "0/v_col/hidden/w": ("fsdp",), "0/v/hidden/b": B},
    ),
    "muon": (
        optax.contrib.muon(1e-3),
        {"inner_states/muon/inner_state/0/mu/hidden/w": W, "inner_states/adam/inner_state/0/nu/hidden/b": B},
    ),
    "MultiSteps": (
        optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=2),
        {"acc_grads/hidden/w": W, "inner_opt_state/0/mu/hidden/w": W, "mini_step": B},
    ),
    "masked": (
        optax.masked(optax.adam(1e-3), {"hidden": {"w": True, "b": False}, "out": {"w": False}}),
        {"inner_state/0/mu/hidden/w": W},
    ),
    "multi_transform": (
        optax.multi_transform(
            {"adam": optax.adam(1e-3), "frozen": optax.set_to_zero()},
            {"hidden": {"w": "adam", "b": "frozen"}, "out": {"w": "frozen"}},
        ),
        {"inner_states/adam/inner_state/0/nu/hidden/w": W},
    ),
    "schedule_free": (
        optax.contrib.schedule_free_adamw(1e-3),
        {"z/hidden/w": W, "base_optimizer_state/0/nu/hidden/w": W, "weight_sum": B},
    ),
    "add_noise": (optax.add_noise(0.1, 0.5, key=0), {"count": B, "rng_key": B}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_s_state_lies_beside_its_parameters(deployer, params, name):
    tx, some = OPTIMIZERS[name]
    params = {"hidden": params["hidden"], "out": params["out"]}
    params_spec = deployer.get_params_spec(params, RULES)
    spec = deployer.get_opt_state_spec(params_shape_or_params=params, params_spec=params_spec, optimizer=tx)
    found = specs(spec)
    assert {name: found[name] for name in some} == {name: P(*entries) for name, entries in some.items()}
    state = deployer.shard_params(params=tx.init(params), params_spec=spec, desc="opt_state")
    assert jax.tree.structure(state) == jax.tree.structure(jax.eval_shape(tx.init, params))
    assert {name: x.sharding.spec for name, x in mw.base._internal.named_leaves(state).items()} == found


@pytest.mark.parametrize("kind", ["numpy", "one device", "the mesh"])
def test_the_arrays_that_were_given_outlive_the_donation_of_their_copies(deployer, params, kind):
    spec = deployer.get_params_spec(params, RULES)
    if kind == "one device":
        params = jax.tree.map(jnp.asarray, params)
    elif kind == "the mesh":
        params = deployer.shard_params(params, spec)
    before = jax.tree.map(np.array, params)
    copies = deployer.shard_params(params, spec)
    step = jax.jit(lambda x: jax.tree.map(lambda leaf: leaf + 1, x), donate_argnums=0)
    deployer.run_model_step(step_fn=step, input_args=(copies,))
    assert jax.tree.all(jax.tree.map(np.array_equal, params, before))


def test_a_step_sees_the_mesh_and_its_result_is_returned(deployer, params):
    spec = deployer.get_params_spec(params, RULES)
    placed = deployer.shard_params(params, spec)
    step = jax.jit(
        lambda rng, params: (params["hidden"]["w"] * 2, 0.5),
        in_shardings=(None, spec),
        out_shardings=(P("tensor"), P()),
    )
    doubled, half = deployer.run_model_step(step, (deployer.gen_model_step_rng(), placed))
    np.testing.assert_array_equal(doubled, params["hidden"]["w"] * 2)
    assert doubled.sharding.spec == P("tensor")
    assert half == 0.5


def test_many_steps_that_nobody_waits_for_give_the_last_one_s_result(deployer):
    step = jax.jit(lambda x: (x + 1, (x + 1).sum()), donate_argnums=0)
    x = jnp.zeros(8)
    for _ in range(20):
        x, total = deployer.run_model_step(step, (x,))
    assert float(total) == 160
