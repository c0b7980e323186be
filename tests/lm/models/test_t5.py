import dataclasses
import functools
import math

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from lm.models.random_params import params_of
from meshwright.lm._models import t5

CFG = t5.Config(14, 16, layers=2, decoder_layers=2, heads=2, head=8, feed_forward=24)
INPUTS, TARGETS = np.random.default_rng(0).integers(0, 14, (2, 8, 12))
logits = jax.jit(functools.partial(t5.logits, CFG))


@pytest.fixture(scope="module")
def params():
    return params_of(t5, CFG)


def test_targets_see_all_inputs_and_none_that_follow(params):
    expected = logits(params, INPUTS, TARGETS)
    targets = np.concatenate([TARGETS[:, :7], 13 - TARGETS[:, 7:]], axis=1)
    found = logits(params, INPUTS, targets)
    np.testing.assert_array_equal(found[:, :7], expected[:, :7])
    assert (np.abs(found[:, 7:] - expected[:, 7:]).max((1, 2)) > 1e-3).all()
    inputs = np.concatenate([INPUTS[:, :-1], 13 - INPUTS[:, -1:]], axis=1)
    assert (np.abs(logits(params, inputs, TARGETS)[:, 0] - expected[:, 0]).max(-1) > 1e-4).all()


@pytest.mark.slow
def test_padding_changes_nothing(params):
    is_input = np.arange(12) < np.full((8, 1), 9)
    found = logits(params, INPUTS, TARGETS, is_input)
    np.testing.assert_allclose(found, logits(params, INPUTS[:, :9], TARGETS), rtol=1e-4, atol=1e-4)


def test_split_over_a_mesh_it_computes_the_same(params, mesh):
    layout = mw.Layout(mesh, t5.RULES)
    placed = jax.device_put(params, layout.shardings(params))
    assert placed["decoder"]["layers"]["cross_o"].sharding.spec == jax.P(None, "tensor", "fsdp")
    with jax.set_mesh(mesh):
        found = jax.jit(functools.partial(t5.logits, CFG))(placed, INPUTS, TARGETS)
    np.testing.assert_allclose(found, logits(params, INPUTS, TARGETS), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_loss_is_the_cross_entropy_of_each_target_given_those_before_it(params):
    is_target = np.arange(12) < np.full((8, 1), 9)
    found = t5.loss(CFG, params, {"inputs": INPUTS, "targets": TARGETS, "is_target": is_target})
    before = np.concatenate([np.zeros((8, 1), int), TARGETS[:, :-1]], axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, INPUTS, before), TARGETS)
    assert (found.count, float(found)) == (72, pytest.approx(float(losses[:, :9].mean()), rel=1e-5))
    np.testing.assert_allclose(
        t5.losses(CFG, params, {"inputs": INPUTS, "targets": TARGETS}), losses, rtol=1e-4
    )
    weights = np.random.default_rng(1).uniform(0, 2, (8, 12)).astype(np.float32)
    batch = {"inputs": INPUTS, "targets": TARGETS, "is_target": is_target, "weights": weights}
    expected = np.average(losses, weights=weights * is_target)
    assert float(t5.loss(CFG, params, batch)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_nothing_is_as_large_as_the_square_of_the_length():
    cfg, rows = (
        dataclasses.replace(CFG, layers=1, decoder_layers=1),
        jax.ShapeDtypeStruct((1, 2048), np.int32),
    )
    params = jax.eval_shape(functools.partial(t5.init, cfg), jax.random.key(0))
    loss = lambda params, inputs: t5.loss(cfg, params, {"inputs": inputs, "targets": inputs}).total
    program = mw.program._internal.program_of(jax.make_jaxpr(jax.grad(loss))(params, rows))
    sizes = (math.prod(v.aval.shape) for each in mw.program._internal.walk(program) for v in each.eqn.outvars)
    assert max(sizes) <= cfg.heads * 2048 * 2048 / 4


@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({}, 76_961_152),  # T5 1.1 small
        (  # T5 small
            {
                "layers": 6,
                "decoder_layers": 6,
                "heads": 8,
                "feed_forward": 2048,
                "gated": False,
                "tied": True,
            },
            60_506_624,
        ),
    ],
)
def test_it_has_as_many_parameters_as_published(changes, published):
    cfg = dataclasses.replace(t5.Config(), **changes)
    found = jax.eval_shape(functools.partial(t5.init, cfg), jax.random.key(0))
    assert mw.training.num_params(found) == published


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 0), ("heads", "6"), ("buckets", 2), ("buckets", 7), ("max_distance", 16)]
)
def test_sizes_that_do_not_go_together_are_refused_by_name(field, value):
    with pytest.raises(mw.errors.UsageError, match=rf"Config\.{field} "):
        dataclasses.replace(t5.Config(), **{field: value})


def test_distances_beyond_the_largest_share_a_bucket():
    found = t5.bucket(t5.Config(), np.array([-500, -128, -127, -3, 0, 3, 500]), bidirectional=True)
    assert found.tolist() == [15, 15, 15, 3, 0, 19, 31]
    found = t5.bucket(t5.Config(), np.array([-500, -20, -3, 0, 3]), bidirectional=False)
    assert found.tolist() == [31, 17, 3, 0, 0]


def test_packed_rows_are_refused_and_not_read_as_one_text(params):
    batch = {"inputs": INPUTS, "targets": TARGETS, "segments": np.ones_like(INPUTS)}
    with pytest.raises(mw.errors.UsageError, match="has segments, but T5 takes one text in each row"):
        t5.loss(CFG, params, batch)
