import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.observe._values import merge
from meshwright.training._step import make_step

TX = optax.adam(1e-2)
RULES = (mw.parallel.match("w", "fsdp", "tensor"),)


def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(4)}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2).mean()


def batch_of(n=16, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 8)).astype(np.float32), "y": rng.normal(size=(n, 4)).astype(np.float32)}


def trained(mesh, steps=3, loss=loss, init=init, optimizer=TX, **more):
    layout = mw.Layout(mw.make_mesh(mesh), RULES)
    state, step = (
        mw.training.init_state(init, optimizer, 0, layout),
        make_step(loss, optimizer, layout, **more),
    )
    for i in range(steps):
        state, metrics = step(state, batch_of(seed=i))
    return state, metrics


def assert_close(a, b, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


def test_the_state_is_born_where_the_layout_puts_it(mesh):
    state = mw.training.init_state(init, TX, 0, mw.Layout(mesh, RULES))
    assert state.params["w"].sharding.spec == P("fsdp", "tensor")
    assert state.opt_state[0].mu["w"].sharding.spec == P("fsdp", "tensor")
    assert {d for x in jax.tree.leaves(state) for d in x.devices()} == set(jax.devices())


def test_the_first_values_depend_on_the_seed_and_not_on_the_mesh():
    def made(mesh, seed):
        return mw.training.init_state(init, TX, seed, mw.Layout(mw.make_mesh(mesh), RULES)).params["w"]

    np.testing.assert_allclose(made("data=8", 1), made("fsdp=2,tensor=4", 1), rtol=1e-6)
    assert not np.allclose(made("data=8", 1), made("data=8", 2))


def test_microbatches_of_arrays_with_other_numbers_of_rows_are_refused():
    layout = mw.Layout(mw.make_mesh("data=8"), RULES)
    state, step = mw.training.init_state(init, TX, 0, layout), make_step(loss, TX, layout, microbatches=2)
    with pytest.raises(UsageError, match=r"all must have as many rows: x \(16, 8\), y \(64, 4\)"):
        step(state, batch_of(16) | {"y": batch_of(64)["y"]})


def test_examples_that_a_product_needs_in_the_dtype_of_the_parameters_are_told():
    def convolved(params, batch, key):
        return jax.lax.conv(batch["x"][:, None], params["w"][None], (1,), "SAME").mean()

    with pytest.raises(TypeError) as told:
        trained("data=8", loss=convolved, init=lambda key: {"w": jnp.ones((1, 3))}, compute_dtype="bfloat16")
    assert "cast the examples in the loss" in "".join(told.value.__notes__)


def test_a_loss_is_called_once_whatever_the_number_of_microbatches():
    calls = []

    def counted(*given):
        calls.append(given)
        return loss(*given)

    trained("fsdp=8", steps=1, loss=counted, microbatches=2)
    assert len(calls) == 1


def test_an_abstract_state_is_what_init_makes(mesh):
    layout = mw.Layout(mesh, RULES)
    made, struct = mw.training.init_state(init, TX, 0, layout), mw.training.abstract_state(init, TX, layout)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), made) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), struct
    )


def test_every_mesh_trains_alike():
    one, _ = trained("data=8")
    for mesh in ("fsdp=8", "data=2,fsdp=2,tensor=2"):
        assert_close(trained(mesh)[0].params, one.params)


def test_a_step_is_optax_applied_to_jax_grad():
    state, metrics = trained("data=8", steps=1)
    params = init(jax.random.key(0))
    value, grads = jax.value_and_grad(loss)(params, batch_of(), None)
    expected = optax.apply_updates(params, TX.update(grads, TX.init(params), params)[0])
    assert_close(state.params, expected)
    assert_close(metrics["loss"].value, value)
    assert_close(metrics["grad_norm"].value, optax.tree.norm(grads))


@pytest.mark.parametrize("microbatches", [2, 4])
def test_microbatches_do_not_change_the_update(microbatches):
    assert_close(
        trained("data=4,tensor=2", microbatches=microbatches)[0].params, trained("data=4,tensor=2")[0].params
    )


@pytest.mark.parametrize(("mesh", "rules"), [("data=8", ()), ("data=4,pipeline=2", [mw.parallel.stages()])])
@pytest.mark.parametrize("meets", [False, True])
def test_rows_that_meet_in_a_loss_of_microbatches_are_told(mesh, rules, meets, caplog):
    def whitened(params, batch):
        weights = batch["weight"] - batch["weight"].mean() if meets else batch["weight"]
        made = mw.nn.layers(lambda w, h: jnp.tanh(h * w.sum() / 4), params["layers"]["w"], batch["x"])
        return (made.sum(-1) * weights).mean()

    layout = mw.Layout(mw.make_mesh(mesh), rules)
    state = mw.training.init_state(lambda key: {"layers": {"w": jnp.ones((4, 4))}}, TX, 0, layout)
    given = {"x": np.ones((32, 4), np.float32), "weight": np.arange(32, dtype=np.float32)}
    make_step(whitened, TX, layout, microbatches=4)(state, given)
    expected = "microbatches=4: rows of the batch meet in the loss, in sub, so"
    assert [said[: len(expected)] for said in caplog.messages] == [expected] * meets


def test_a_mean_weighs_tokens_exactly_over_microbatches():
    def masked(params, batch, key):
        errors = ((batch["x"] @ params["w"] - batch["y"]) ** 2).sum(-1)
        return mw.Mean.of(
            errors, jnp.arange(errors.size) % 16 < 5 if errors.size == 16 else batch["x"][:, 0] > 1
        )

    def weighed(params, batch, key):
        errors = ((batch["x"] @ params["w"] - batch["y"]) ** 2).sum(-1)
        return mw.Mean.of(errors, batch["x"][:, 0] > 0.5)

    whole, split = (
        trained("data=4,tensor=2", loss=weighed),
        trained("data=4,tensor=2", loss=weighed, microbatches=4),
    )
    assert_close(split[0].params, whole[0].params)
    assert_close(split[1]["loss"].value, whole[1]["loss"].value)


def test_a_batch_in_which_nothing_counts_changes_nothing():
    state, metrics = trained(
        "data=8", loss=lambda p, b, k: mw.Mean(p["w"].sum() * 0, jnp.zeros(())), optimizer=optax.sgd(1.0)
    )
    assert_close(state.params, init(jax.random.key(0)))
    assert jnp.isnan(metrics["loss"].value)


def test_gradients_and_state_keep_the_parameters_dtype():
    half = lambda key: jax.tree.map(lambda x: x.astype(jnp.bfloat16), init(key))
    seen = []
    spy = optax.stateless(lambda updates, params: seen.append(jax.tree.map(jnp.dtype, updates)) or updates)
    state, _ = trained("data=8", init=half, optimizer=optax.chain(spy, optax.sgd(0.1)), microbatches=2)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.bfloat16)}
    assert {str(d) for d in jax.tree.leaves(seen)} == {"bfloat16"}


def test_randomness_is_a_function_of_seed_and_step():
    noisy = lambda params, batch, key: (params["w"] * jax.random.normal(key, ())).sum()
    first, second = trained("data=8", loss=noisy), trained("fsdp=8", loss=noisy)
    assert_close(first[0].params, second[0].params)
    assert (
        trained("data=8", 1, loss=noisy)[1]["loss"].value != trained("data=8", 2, loss=noisy)[1]["loss"].value
    )


def test_metrics_come_back_beside_the_loss():
    with_metrics = lambda params, batch, key: (loss(params, batch, key), {"half": jnp.float32(0.5)})
    _, metrics = trained("data=4,tensor=2", loss=with_metrics, microbatches=4)
    assert metrics.keys() == {"loss", "half", "grad_norm"}
    assert metrics["half"].value == 0.5


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.daily(1)
def test_a_loss_may_return_histograms_and_scalars_of_any_dtype(microbatches):
    def counting(params, batch, key):
        errors = batch["x"] @ params["w"] - batch["y"] - 100  # all negative: 0 is not their max
        return (errors**2).mean(), {
            "errors": mw.observe.Histogram.of(errors),
            "small": jnp.float8_e5m2(0.5),
            "n": 3,
        }

    _, metrics = trained("data=8", steps=1, loss=counting, microbatches=microbatches)
    batch, report = batch_of(seed=0), merge([metrics])
    w = mw.training.init_state(init, TX, 0, mw.Layout(mw.make_mesh("data=8"))).params["w"]
    errors = batch["x"] @ np.asarray(w) - batch["y"] - 100
    assert (report["small"], report["n"], report["errors"].bins()[0].sum()) == (0.5, 3, errors.size)
    found = (report["errors"].min, report["errors"].max, report["errors"].sum)
    np.testing.assert_allclose(found, (errors.min(), errors.max(), errors.sum()), rtol=1e-5)


def test_histograms_from_a_scan_are_to_be_summed_or_named():
    def stacked(params, batch, key):
        return loss(params, batch, key), {"errors": jax.vmap(mw.observe.Histogram.of)(batch["x"])}

    with pytest.raises(UsageError, match=r"errors must be one Histogram.*\[16\]\.\n.*summed"):
        trained("data=8", steps=1, loss=stacked)


def test_the_state_given_is_donated(mesh):
    layout = mw.Layout(mesh, RULES)
    state = mw.training.init_state(init, TX, 0, layout)
    make_step(loss, TX, layout)(state, batch_of())
    assert state.params["w"].is_deleted()


def test_a_state_that_was_given_before_is_refused():
    layout = mw.Layout(mw.make_mesh("data=-1"))
    state, step = mw.training.init_state(init, TX, 0, layout), make_step(loss, TX, layout)
    step(state, batch_of())
    with pytest.raises(UsageError, match=r"state, metrics = step\(state, batch\)"):
        step(state, batch_of())


def test_models_may_constrain_by_bare_partition_specs(mesh):
    def constrained(params, batch, key):
        x = jax.lax.with_sharding_constraint(batch["x"] @ params["w"], P("data", "tensor"))
        return (x**2).mean()

    assert jnp.isfinite(trained("data=2,fsdp=2,tensor=2", loss=constrained)[1]["loss"].value)


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(UsageError, match=r"loss must be a scalar .* it has shape \(16,\)"):
        trained("data=8", loss=lambda p, b, k: (b["x"] @ p["w"]).sum(-1))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "it is None: does it end without `return`"),
        ((jnp.float32(1), jnp.float32(2)), "the second value must be a dictionary of metrics"),
        ([jnp.float32(1)], "it is of type list"),
        ((jnp.float32(1), {"inner": {"a": 1}}), r"inner must be a scalar or a Mean .* it is of type dict"),
        ((jnp.float32(1), {"loss": jnp.float32(1)}), "a metric called 'loss', but this name is reserved"),
        ((jnp.float32(1), {"grad_norm": jnp.float32(1)}), "a metric called 'grad_norm'"),
    ],
)
def test_what_a_loss_may_not_return_is_told(returned, says):
    with pytest.raises(UsageError, match=says):
        trained("data=8", loss=lambda params, batch, key: returned)


def test_a_model_without_parameters_is_refused(mesh):
    with pytest.raises(UsageError, match="no parameters"):
        mw.training.abstract_state(lambda key: {}, TX, mw.Layout(mesh))


def warnings_in(caplog):
    """Return the texts of warnings. Lower levels are seen only after a run of this process set up the log."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_batch_of_another_shape_is_compiled_for_once_and_told(caplog):
    layout = mw.Layout(mw.make_mesh("data=8"))
    state, step = mw.training.init_state(init, TX, 0, layout), make_step(loss, TX, layout)
    state, _ = step(state, batch_of(16))
    took = [step.compile_seconds]
    for size in (8, 16, 8, 16):
        state, _ = step(state, batch_of(size))
        took.append(step.compile_seconds)
    assert took[0] < took[1] == took[-1]
    assert step.num_shapes == 2
    assert [text.partition(" where ")[2] for text in warnings_in(caplog)] == [
        "x was float32[16, 8], is float32[8, 8]; y was float32[16, 4], is float32[8, 4]"
    ]


def test_shapes_that_are_known_are_compiled_for_before_the_first_step(caplog):
    layout = mw.Layout(mw.make_mesh("data=8"))
    state, step = mw.training.init_state(init, TX, 0, layout), make_step(loss, TX, layout)
    for size in (16, 8):
        step.compile(mw.training.abstract_state(init, TX, layout), batch_of(size))
    took = step.compile_seconds
    for i, size in enumerate((16, 8, 8, 16)):
        state, _ = step(state, batch_of(size, seed=i))
    assert (step.compile_seconds, warnings_in(caplog)) == (took, [])
    assert int(state.step) == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda batch: {**batch, "x": batch["x"].astype(np.int32)}, r"x was float32\[16, 8\], is int32"),
        (lambda batch: {**batch, "z": batch["x"]}, r"z was missing, is float32\[16, 8\]"),
        (lambda batch: {**batch, "x": batch["x"][0]}, r"x was float32\[16, 8\], is float32\[8\]"),
    ],
    ids=["dtype", "array", "dimensions"],
)
def test_a_batch_of_other_arrays_is_refused_and_the_state_is_kept(change, says):
    layout = mw.Layout(mw.make_mesh("data=8"))
    state, step = mw.training.init_state(init, TX, 0, layout), make_step(loss, TX, layout)
    state, _ = step(state, batch_of(16))
    with pytest.raises(UsageError, match=says):
        step(state, change(batch_of(16)))
    assert int(step(state, batch_of(16))[0].step) == 2


def test_a_batch_that_does_not_divide_over_devices_and_microbatches_is_refused():
    with pytest.raises(LayoutError, match=r"multiple of 24\s.*8 ways .* × 3 microbatches"):
        trained("data=8", microbatches=3)


def test_integer_parameters_are_refused_by_name(mesh):
    with pytest.raises(UsageError, match="params/n is int32"):
        mw.training.abstract_state(lambda key: {"n": jnp.arange(3), "w": jnp.ones(3)}, TX, mw.Layout(mesh))


def test_jax_s_own_checks_see_the_initial_state_and_the_step(mesh):
    layout = mw.Layout(mesh, RULES)
    state, bad = mw.training.init_state(init, TX, 0, layout), lambda *given: {"w": jnp.log(-jnp.ones((8, 4)))}
    with jax.debug_nans(True):
        with pytest.raises(Exception, match="nan"):
            mw.training.init_state(bad, TX, 0, layout)
        with pytest.raises(Exception, match="nan"):
            make_step(lambda *given: loss(*given) * bad()["w"].sum(), TX, layout)(state, batch_of())


def keyless(params, batch):
    return loss(params, batch, None)


@pytest.mark.parametrize("how", [{}, {"microbatches": 2}], ids=["whole", "microbatches"])
@pytest.mark.daily(1)
def test_a_loss_that_draws_nothing_need_not_take_a_key(how):
    ours, theirs = trained("data=8", loss=keyless, **how), trained("data=8", **how)
    jax.tree.map(np.testing.assert_array_equal, ours[0], theirs[0])


def test_nor_need_one_of_a_model_with_a_state():
    def stateful(params, batch, model_state):
        return loss(params, batch, None), {}, model_state + 1

    state, _ = trained(
        "data=8", loss=stateful, init=lambda key: mw.training.Variables(init(key), jnp.int32(0))
    )
    assert state.model_state == 3


@pytest.mark.parametrize(
    "around",
    [
        lambda loss: mw.training.with_parameter_noise(loss, [(".*", 0.1)]),
        lambda loss: mw.training.remat(loss, "dots"),
    ],
    ids=["noise", "remat"],
)
@pytest.mark.daily(1)
def test_a_loss_without_a_key_may_be_wrapped(around):
    ours, theirs = trained("data=8", loss=around(keyless)), trained("data=8", loss=around(loss))
    jax.tree.map(np.testing.assert_array_equal, ours[0], theirs[0])


def of_step(params, batch, step):
    """Return a loss whose gradient is the step."""
    assert step.dtype == jnp.int32
    return params["b"].sum() * step + 0 * batch["x"].mean(), {"now": step}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_loss_with_an_argument_step_gets_the_step_of_the_state(microbatches):
    state, metrics = trained("data=8", 4, of_step, optimizer=optax.sgd(1.0), microbatches=microbatches)
    np.testing.assert_array_equal(state.params["b"], np.full(4, -(0 + 1 + 2 + 3), np.float32))
    assert metrics["now"].value == 3


def test_losses_around_a_loss_of_the_step_pass_it_on():
    loss = mw.training.remat(of_step, "nothing")
    adapter = mw.lm.lora("w", rank=1)
    around = mw.training.with_parameter_noise(adapter.loss(loss), [("lora_b", 0.1)])
    _, metrics = trained("data=8", 3, around, adapter.init(init), adapter.optimizer(optax.sgd(1.0)))
    assert metrics["now"].value == 2


def test_arguments_of_a_loss_with_a_default_keep_it():
    def regularised(params, batch, l2=1e-4):
        assert l2 == 1e-4
        return loss(params, batch, None) + l2 * (params["w"] ** 2).sum()

    trained("data=8", 1, regularised)
