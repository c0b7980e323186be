"""Every table over the names of leaves refuses a rule that decides nothing, in every way to train."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.checkpoints._arrays._source import as_source, cast
from meshwright.checkpoints._convert import convert
from meshwright.errors import UsageError

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}
SGD = optax.sgd(0.1)
TYPO = [("encodr/.*", "none")]
NEAREST = "'encodr/.*' matches no name; the nearest is params/encoder/"


def init(key):
    return {"encoder": {"w": jnp.ones((4, 8)), "b": jnp.ones(8)}, "head": jnp.ones((8, 2))}


def loss(params, batch, key=None):
    return ((batch["x"] @ params["encoder"]["w"] + params["encoder"]["b"]) @ params["head"]).sum() ** 2


def table(value, *rest):
    """Rules of which the first has a typing error."""
    return [("encodr/.*", value), *rest]


def masked(tx):
    """An optimizer of the head alone: its `init` never sees the encoder."""
    only_head = lambda params: mw.base._internal.map_named(lambda name, _: name == "head", params)
    return optax.chain(optax.masked(tx, only_head), SGD)


def nested(tx):
    return mw.training.skip_exploding(optax.MultiSteps(optax.chain(tx, SGD), 2).gradient_transformation())


OPTIMIZERS = {
    "by_path": mw.training.by_path(table(SGD, (".*", optax.adam(0.1)))),
    "update_rules": mw.training.update_rules(TYPO, SGD),
    "scale_by_path": optax.chain(SGD, mw.training.scale_by_path(table(0.5))),
    "decay_by_path": optax.chain(mw.training.decay_by_path(table(0.5)), SGD),
    "scale_by_path in a mask": masked(mw.training.scale_by_path(table(0.5))),
    "by_path in a guard": nested(mw.training.by_path(table(SGD, (".*", SGD)))),
    "decay_by_path of some": mw.training.Trainable(
        "encoder/.*|head", mw.training.by_path([(".*", mw.training.decay_by_path(table(0.1)))])
    ),
}
FIELDS = {
    "rules": {"rules": (mw.parallel.fsdp(), mw.parallel.match("encodr/.*", "fsdp"))},
    "logical": {"rules": (mw.parallel.logical({"encodr/w": ("embed", "mlp")}),)},
    "compute_dtype": {"compute_dtype": (("encodr/.*", None), (".*", "bfloat16"))},
    "parameter_noise": {"parameter_noise": (("encodr/.*", 0.1),)},
    "norms": {"logging": mw.Logging(norms="encodr/.*")},
    "cast": {"save": mw.Save(cast=[("encodr/.*", "bfloat16")])},
}


def experiment(run, **more):
    described = {"model": init, "loss": loss, "optimizer": SGD, "max_steps": 2} | more
    return mw.Experiment(workdir=str(run), input=mw.Input(EXAMPLES, batch_size=16), **described)


def trainer(directory, **more):
    deployer = mw.Deployer(0, verbose=False, workdir=directory)
    return mw.Trainer(deployer, **{"loss": loss, "params": init(None), "optimizer": SGD} | more)


def own_loop(tx=SGD, rules=(), loss=loss, **more):
    layout = mw.Layout(mw.make_mesh("data=-1"), rules)
    state, step = mw.training.init_state(init, tx, 0, layout), mw.make_step(loss, tx, layout, **more)
    return step(state, {"x": EXAMPLES["x"][:16]})


def refused(name):
    """Expect the error about a table."""
    said = name.split()[0]
    if said == "logical":
        return pytest.raises(UsageError, match=r"encodr/w \(did you mean encoder/w\?\)")
    return pytest.raises(UsageError, match=rf"(^|\n|\.){said}: (rule \d, )?'encodr/\.\*',? .*params/encoder/")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_does_not_start_with_an_optimizers_rule_for_nothing(name, tmp_path):
    with refused(name):
        mw.run(experiment(tmp_path / "run", optimizer=OPTIMIZERS[name]))


@pytest.mark.parametrize("name", FIELDS)
def test_a_run_does_not_start_with_a_rule_for_nothing(name, tmp_path):
    with refused(name):
        mw.run(experiment(tmp_path / "run", **FIELDS[name]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trainer_does_not_start_with_an_optimizers_rule_for_nothing(name, tmp_path):
    with refused(name):
        trainer(tmp_path, optimizer=OPTIMIZERS[name]).fit(EXAMPLES, 2, max_steps=2)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("rules", FIELDS["rules"]),
        ("logical", FIELDS["logical"]),
        ("compute_dtype", {"compute_dtype": FIELDS["compute_dtype"]["compute_dtype"]}),
    ],
)
def test_a_trainer_does_not_start_with_a_rule_for_nothing(name, given, tmp_path):
    with refused(name):
        trainer(tmp_path, **given).fit(EXAMPLES, 2, max_steps=2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_is_not_made_with_an_optimizers_rule_for_nothing(name):
    with refused(name):
        own_loop(OPTIMIZERS[name])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("rules", FIELDS["rules"]),
        ("logical", FIELDS["logical"]),
        ("compute_dtype", {"compute_dtype": FIELDS["compute_dtype"]["compute_dtype"]}),
        ("parameter_noise", {"loss": mw.training.with_parameter_noise(loss, table(0.1))}),
        ("norms", {"norms": "encodr/.*"}),
    ],
)
def test_a_loop_of_ones_own_does_not_start_with_a_rule_for_nothing(name, given):
    with refused(name):
        own_loop(**given)


def test_a_deployer_and_a_predictor_refuse_rules_for_nothing():
    deployer, params = mw.Deployer(0, verbose=False), init(None)
    wrong = [mw.parallel.match("encodr/.*", "fsdp")]
    with refused("rules"):
        deployer.get_params_spec(params, wrong)
    with refused("rules"):
        deployer.get_params_spec(
            {"a": params, "b": params}, {"a": [mw.parallel.match("encoder/w")], "b": wrong}
        )
    spec = deployer.get_params_spec(params, None)
    with refused("scale_by_path"):
        deployer.get_opt_state_spec(params, spec, OPTIMIZERS["scale_by_path"])
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"], rules=wrong)
    with refused("rules"):
        predictor.predict(EXAMPLES, 2, params)


def test_all_that_a_state_is_laid_out_by_is_told_at_once():
    tx = mw.training.update_rules([("encodr/w", "none")], mw.training.by_path([("haed", SGD), (".*", SGD)]))
    with pytest.raises(UsageError) as error:
        own_loop(tx, (mw.parallel.match("ecnoder/w", "fsdp"),))
    told = [line.split(":")[0] for line in str(error.value).splitlines()[:-1]]
    assert told == ["rules", "by_path", "update_rules"]


ARRAYS = {"params": {"encoder": {"w": np.ones(2, np.float32)}, "head": np.ones(2, np.float32)}}


def source():
    return as_source(mw.base._internal.named_leaves(ARRAYS), "saved")


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("cast", lambda: cast(source(), [("encodr/.*", "float16")])),
        ("assign", lambda: mw.restore(source(), ARRAYS, assign=[("encodr/.*", "params/head")])),
        ("ignore", lambda: mw.restore(source(), ARRAYS, ignore="encodr/.*")),
    ],
)
def test_a_restore_does_not_begin_with_a_rule_for_nothing(name, act):
    with refused(name):
        act()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("only", {"only": "encodr/.*"}),
        ("adapt", {"adapt": [("encodr/.*", lambda x, wanted: x)]}),
        ("assign", {"assign": [("encodr/.*", r"params/head")]}),
        ("cast", {"casts": [("encodr/.*", "float16")]}),
    ],
)
def test_a_builder_refuses_a_rule_for_nothing(name, how, tmp_path):
    mw.run(experiment(tmp_path / "run"))
    build = mw.engine.from_checkpoint(f"{tmp_path}/run/checkpoints", **how)
    with refused(name):
        mw.run(experiment(tmp_path / "other", init_state_builder=build))


@pytest.mark.parametrize("name", ["only", "dtype"])
def test_a_conversion_refuses_a_rule_for_nothing(name, tmp_path):
    mw.run(experiment(tmp_path / "run"))
    saved = mw.checkpoints.open_source(f"{tmp_path}/run/checkpoints")
    how = {"only": "encodr/.*"} if name == "only" else {"dtype": {"encodr/.*": "bfloat16"}}
    with refused(name):
        convert(saved, tmp_path / "new", **how)


def test_optional_rules_and_one_for_the_rest_need_decide_nothing(tmp_path):
    served = [
        ("head", 0.5),
        (mw.parallel.optional("decoder/.*"), 2.0),
        (mw.parallel.optional("head"), 1.0),
        (".*", 1.0),
    ]
    optional, every = mw.parallel.optional("decoder/.*"), [("encoder/.*", 1.0), ("head", 1.0), (".*", 1.0)]
    tx = optax.chain(mw.training.scale_by_path(served), mw.training.by_path([(optional, SGD), (".*", SGD)]))
    run = mw.run(
        experiment(
            tmp_path / "run",
            optimizer=mw.training.update_rules(
                [(optional, "none")], optax.chain(tx, mw.training.decay_by_path(every))
            ),
            rules=(
                mw.parallel.match(optional, "fsdp"),
                mw.parallel.match("head", "fsdp"),
                mw.parallel.match(".*"),
            ),
            compute_dtype=((optional, None), (".*", "bfloat16")),
            parameter_noise=((optional, 0.1),),
            save=mw.Save(cast=[(optional, "float16"), ("w", "bfloat16")]),
        )
    )
    assert run.step == 2


@pytest.mark.parametrize("mesh", ["data=-1", "data=1,fsdp=8", "data=4,tensor=2"])
def test_rules_for_axes_that_a_mesh_lacks_decide_all_the_same(mesh):
    rules = (
        mw.parallel.fsdp(min_size=1),
        mw.parallel.match("w", None, "tensor"),
        mw.parallel.match("head", "expert"),
    )
    layout = mw.Layout(mw.make_mesh(mesh), rules)
    assert mw.training.init_state(init, SGD, 0, layout).params["head"].shape == (8, 2)


def test_a_models_own_names_of_dimensions_may_be_taken_by_rules_before_them():
    rules = (mw.parallel.match(".*/w", None, "fsdp"), mw.parallel.logical({"encoder/w": ("embed", "mlp")}))
    layout = mw.Layout(mw.make_mesh("fsdp=8"), rules)
    assert layout.shardings({"params": init(None)})["params"]["encoder"]["w"].spec == jax.P(None, "fsdp")


def test_a_rule_that_a_deployer_found_is_for_parameters_that_are_there():
    deployer, large = (
        mw.Deployer(0, verbose=False, mesh="fsdp=8"),
        jax.ShapeDtypeStruct((4096, 64), "float32"),
    )
    rules = deployer.get_sharding_rules({"encodr": large})
    with pytest.raises(
        UsageError, match=r"rules: '\^params/encodr' matches no name; the nearest is params/encoder"
    ):
        deployer.get_params_spec({"encoder": large}, rules)


def test_what_is_told_of_a_layout_may_be_told_of_a_part_of_the_arrays():
    layout = mw.Layout(
        mw.make_mesh("fsdp=8"),
        (mw.parallel.match("encoder/w", None, "fsdp"), mw.parallel.match("head", "fsdp")),
    )
    assert "encoder/w" in layout.explain({"encoder": init(None)["encoder"]})


def test_a_masked_optimizer_by_path_is_judged_by_all_parameters():
    tx = masked(mw.training.scale_by_path([("head", 0.5), ("encoder/.*", 0.0)]))
    state, _ = own_loop(tx)
    assert int(state.step) == 1


def test_tables_change_no_name_of_an_optimizers_state():
    def names(tx):
        return mw.parallel.leaf_names(tx.init(init(None)))

    parts = {"0": optax.adam(0.1), "1": SGD}
    labels = lambda params: mw.base._internal.map_named(
        lambda name, _: "0" if name == "head" else "1", params
    )
    assert names(mw.training.by_path([("head", optax.adam(0.1)), (".*", SGD)])) == names(
        optax.partition(parts, labels)
    )
    assert (
        names(mw.training.scale_by_path([("head", 2.0)]))
        == names(mw.training.decay_by_path([("head", 2.0)]))
        == []
    )


def test_checkpoint_patterns_match_the_last_components_too(tmp_path):
    mw.run(experiment(tmp_path / "run", save=mw.Save(cast=[("w", "bfloat16")])))
    saved = mw.checkpoints.open_source(f"{tmp_path}/run/checkpoints").arrays()
    assert {name for name, x in saved.items() if x.dtype == jnp.bfloat16} == {"params/encoder/w"}
    build = mw.engine.from_checkpoint(f"{tmp_path}/run/checkpoints", only="w", casts=[("w", "float32")])
    target = mw.training.abstract_state(init, SGD, mw.Layout(mw.make_mesh("data=-1")))
    assert build(target).keys() == {"params/encoder/w"}


def test_a_group_of_an_assignment_has_all_above_where_the_whole_name_matches():
    held = {"model": {"a": {"b": {"w": np.float32(1)}}}, "other": {"w": np.float32(2)}}
    saved = as_source({"params/a/b/w": np.float32(1), "last w": np.float32(2)}, "saved")
    assign = [(r"model/(.*)/w", r"params/\1/w"), ("(w)", r"last \1")]
    assert mw.restore(saved, held, assign=assign) == held


def test_the_default_of_a_builder_takes_parameters_and_not_what_ends_like_them(tmp_path):
    """As a Flax model's variables, in which there is a "params" again."""
    nested = lambda key: {"params": init(key)}
    of = lambda params, batch, key: loss(params["params"], batch)
    mw.run(experiment(tmp_path / "run", model=nested, loss=of, optimizer=optax.adam(0.1)))
    target = mw.training.abstract_state(nested, optax.adam(0.1), mw.Layout(mw.make_mesh("data=-1")))
    taken = mw.engine.from_checkpoint(f"{tmp_path}/run/checkpoints")(target)
    assert all(name.startswith("params/params/") for name in taken)
    assert len(taken) == len(jax.tree.leaves(target.params))
