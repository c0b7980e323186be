import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import CheckpointError, DamagedError, UsageError

TX = optax.adamw(1e-3)


def on(deployer, params, *rules):
    return deployer.shard_params(params, deployer.get_params_spec(params, rules))


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, np.asarray(a).tobytes()) == (b.dtype, np.asarray(b).tobytes())


def test_what_is_saved_comes_back_bit_for_bit_on_another_mesh(make_deployer, tmp_path, params):
    params["hidden"]["b"] = params["hidden"]["b"].astype(jnp.bfloat16) + jnp.bfloat16(0.1)
    saving = make_deployer(num_model_shards=2, workdir=tmp_path)
    placed = on(saving, params, mw.parallel.match("hidden/w", None, "tensor"))
    floats = {name: placed[name] for name in ("hidden", "out")}
    saving.save_ckpt("best", floats, TX.init(floats), step=3)
    loading = make_deployer(mesh="fsdp=4,tensor=2", workdir=tmp_path)
    rules = [mw.parallel.match("hidden/w", "fsdp")]
    ckpt, info = loading.load_ckpt("best", rules=rules, optimizer=TX)
    assert_same_bits(ckpt["params"], floats)
    assert_same_bits(ckpt["opt_state"], TX.init(floats))
    assert ckpt["params"]["hidden"]["w"].sharding.spec == jax.P("fsdp")
    assert ckpt["opt_state"][0].mu["hidden"]["w"].sharding.spec == jax.P("fsdp")
    assert info["step"] == 3


def test_numpy_s_arrays_are_saved_and_come_back_as_jax_makes_them(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    params = {"layers": [{"w": np.ones(3)}, {"w": np.arange(3)}]}
    deployer.save_ckpt("init", params=params)
    ckpt, _ = deployer.load_ckpt("init")
    assert_same_bits(
        ckpt["params"],
        {"layers": {"0": {"w": np.ones(3, np.float32)}, "1": {"w": np.arange(3, dtype=np.int32)}}},
    )


def test_an_optimizer_s_randomness_is_saved_too(make_deployer, tmp_path):
    deployer, params = make_deployer(workdir=tmp_path), {"w": np.ones(2, np.float32)}
    tx = optax.add_noise(0.1, 0.5, key=5)
    deployer.save_ckpt("last", params, tx.init(params), float_dtype=jnp.bfloat16)
    ckpt, _ = deployer.load_ckpt("last", optimizer=tx)
    assert jax.random.key_data(ckpt["opt_state"].rng_key).tolist() == [0, 5]


def test_without_an_optimizer_the_parameters_come_alone(make_deployer, tmp_path, params):
    deployer = make_deployer(workdir=tmp_path)
    floats = {"w": params["out"]["w"]}
    deployer.save_ckpt("last", params=floats, opt_state=TX.init(floats))
    assert deployer.load_ckpt("last")[0]["opt_state"] is None
    both = {"optimizer": TX, "load_opt_state": False}
    assert deployer.load_ckpt("last", **both)[0]["opt_state"] is None
    ckpt, _ = deployer.load_ckpt("last", optimizer=TX, load_params=False)
    assert ckpt["params"] is None
    assert_same_bits(ckpt["opt_state"], TX.init(floats))


def test_saving_again_leaves_nothing_of_what_was_there(make_deployer, tmp_path, params):
    deployer = make_deployer(workdir=tmp_path)
    floats = {"w": params["out"]["w"]}
    deployer.save_ckpt("last", floats, TX.init(floats), step=1, note="old")
    deployer.save_ckpt("last", {"w": floats["w"] + 1}, step=2)
    ckpt, info = deployer.load_ckpt("last", optimizer=TX)
    assert ckpt["opt_state"] is None
    assert_same_bits(ckpt["params"], {"w": floats["w"] + 1})
    assert info.keys() == {"rng", "step"}
    assert len(list((tmp_path / "ckpts/last").glob("step_*"))) == 1


@pytest.mark.parametrize("float_dtype", [jnp.bfloat16, "bfloat16", np.dtype(jnp.bfloat16)])
def test_a_narrower_file_is_widened_again_unless_asked(make_deployer, tmp_path, params, float_dtype):
    deployer = make_deployer(workdir=tmp_path)
    floats = {"w": params["out"]["w"], "table": params["table"]}
    deployer.save_ckpt("last", floats, TX.init(floats), float_dtype=float_dtype)
    rounded = {**floats, "w": floats["w"].astype(jnp.bfloat16).astype(np.float32)}
    found = deployer.load_ckpt("last", optimizer=TX)[0]
    assert_same_bits(found["params"], rounded)
    assert found["opt_state"][0].mu["w"].dtype == jnp.float32
    narrow = deployer.load_ckpt("last", optimizer=TX, float_dtype=float_dtype)[0]
    assert [x.dtype for x in jax.tree.leaves(narrow["params"])] == [np.int8, jnp.bfloat16]
    assert narrow["opt_state"][0].mu["w"].dtype == jnp.bfloat16
    assert deployer.load_params_shape("last")["w"].dtype == np.float32


def test_numbers_of_any_sort_are_kept_with_it(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    kept = {
        "step": np.int64(7),
        "epoch_idx": jnp.int32(1),
        "scores": {"loss": np.float32(0.5)},
        "names": ("a",),
    }
    deployer.save_ckpt("last", {"w": np.ones(2)}, **kept)
    info = deployer.load_ckpt("last")[1]
    del info["rng"]
    assert info == {"step": 7, "epoch_idx": 1, "scores": {"loss": 0.5}, "names": ["a"]}


def test_randomness_goes_on_as_it_was_if_asked(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path, seed=3)
    deployer.gen_rng()
    deployer.save_ckpt("last", {"w": np.ones(2)})
    expected = jax.random.key_data(deployer.gen_rng()).tolist()
    for load, goes_on in [("load_last_ckpt", True), ("load_ckpt", False)]:
        other = make_deployer(workdir=tmp_path)
        _, info = getattr(other, load)(*(() if goes_on else ("last",)))
        assert (jax.random.key_data(other.gen_rng()).tolist() == expected) is goes_on
        assert jax.random.key_data(jax.random.split(info["rng"])[1]).tolist() == expected


def test_the_last_that_was_saved_is_remembered(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path / "run")
    assert deployer.load_last_ckpt() == (None, None)
    for number, name in enumerate(["best", "last", "best", f"{deployer.workdir}/ckpts/epoch_1"]):
        deployer.save_ckpt(name, {"w": np.full(2, number)}, step=number)
        assert deployer.load_last_ckpt()[1]["step"] == number
    assert (tmp_path / "run/ckpts/last_ckpt.txt").read_text() == "epoch_1"
    deployer.save_ckpt(tmp_path / "elsewhere", {"w": np.ones(2)}, step=9)
    assert deployer.load_last_ckpt()[1]["step"] == 3
    assert not (tmp_path / "last_ckpt.txt").exists()


def test_a_word_is_a_name_and_what_has_a_slash_is_a_path(make_deployer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_workdir, without = make_deployer(workdir="run"), make_deployer()
    with_workdir.save_ckpt("init", {"w": np.ones(2)}, by="name")
    with_workdir.save_ckpt("./init", {"w": np.ones(2)}, by="path")
    assert with_workdir.load_ckpt("init")[1]["by"] == "name"
    assert without.load_ckpt("init")[1]["by"] == "path"
    without.save_ckpt("pretrained", {"w": np.ones(2)}, by="another program")
    assert with_workdir.load_ckpt("pretrained")[1]["by"] == "another program"
    assert without.load_last_ckpt() == (None, None)


def test_what_trainer_saved_is_the_last_where_nothing_has_a_name(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
    trainer = mw.Trainer(deployer, params={"w": np.ones(4, np.float32)}, loss=loss, optimizer=TX)
    trainer.fit({"x": np.ones((32, 4), np.float32)}, per_device_batch_size=1, epochs=1)
    ckpt, info = deployer.load_last_ckpt(optimizer=TX)
    assert info["step"] == 4
    assert "has no stream of keys" in next(tmp_path.glob("log*.txt")).read_text()
    assert_same_bits(ckpt, {"params": trainer.params, "opt_state": trainer.state.opt_state})
    assert_same_bits(deployer.load_ckpt(tmp_path / "checkpoints/step_00000004")[0]["params"], trainer.params)
    deployer.save_ckpt("named", {"w": np.ones(4)}, step=1)
    assert deployer.load_last_ckpt()[1]["step"] == 1


def test_what_is_not_whole_is_refused(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint 'bset' in \S*ckpts"):
        deployer.load_ckpt("bset")
    deployer.save_ckpt("last", {"w": np.arange(100.0)})
    [step] = (tmp_path / "ckpts/last").glob("step_*")
    data = next(step.glob("data-*"))
    data.write_bytes(data.read_bytes().replace(np.arange(10.0, 20).tobytes(), bytes(80)))
    with pytest.raises(DamagedError):
        deployer.load_last_ckpt()
    (step / "manifest.json").unlink()
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged: it is missing"):
        deployer.load_last_ckpt()


def test_a_name_that_nothing_has_is_told_what_there_is_and_how_to_load_the_best(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    with pytest.raises(
        CheckpointError, match=r"no checkpoint 'best' in .*/ckpts, and none with another name"
    ):
        deployer.load_ckpt("best")
    deployer.save_ckpt("last", {"w": np.ones(2)})
    loss = lambda params, batch: (params["w"] * batch["x"]).mean()
    trainer = mw.Trainer(deployer, params={"w": np.ones(2)}, loss=loss, optimizer=optax.sgd(0.1))
    data = {"x": np.ones((8, 2), np.float32)}
    save = mw.Save(keep=mw.checkpoints.best("dev/loss", "min"))
    trainer.fit(data, 1, 2, evaluations={"dev": mw.Evaluation("loss", data)}, save=save)
    with pytest.raises(CheckpointError, match=r"which has last.\n") as raised:
        deployer.load_ckpt("min_loss")
    [best] = re.findall(r"load_ckpt\((mw\..*)\.path\) the best", str(raised.value))
    ckpt, info = deployer.load_ckpt(eval(best).path)
    assert (info["step"], np.asarray(ckpt["params"]["w"]).tolist()) == (2, trainer.params["w"].tolist())
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint 'max_acc'.*'test/acc', 'max'"):
        deployer.load_params_shape("max_acc")


def test_an_optimizer_of_another_kind_is_told_which_arrays_do_not_fit(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    params = {"w": np.ones(2, np.float32)}
    deployer.save_ckpt("last", params, TX.init(params))
    with pytest.raises(CheckpointError, match=r"opt_state/trace/w|opt_state/0/trace/w"):
        deployer.load_ckpt("last", optimizer=optax.sgd(1e-3, momentum=0.9))


def test_what_cannot_be_saved_is_refused_and_what_was_there_stays(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    deployer.save_ckpt("last", {"w": np.ones(2)}, step=1)
    with pytest.raises(UsageError, match="float_dtype='int8' is not a floating-point dtype"):
        deployer.save_ckpt("last", {"w": np.ones(2)}, float_dtype="int8")
    with pytest.raises(UsageError, match="JSON cannot hold"):
        deployer.save_ckpt("last", {"w": np.ones(2)}, model=object())
    with pytest.raises(UsageError):
        deployer.save_ckpt("last", {"w": "text"})
    assert deployer.load_last_ckpt()[1]["step"] == 1


def test_a_checkpoint_may_lie_in_an_object_store(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    deployer.save_ckpt("memory://bucket/run", {"w": np.arange(3)}, step=2)
    ckpt, info = deployer.load_ckpt("memory://bucket/run")
    assert (ckpt["params"]["w"].tolist(), info["step"]) == ([0, 1, 2], 2)
