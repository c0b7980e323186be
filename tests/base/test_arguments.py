import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base._arguments import by_name, in_order, num_required
from meshwright.errors import UsageError

VALUES = {"params": 2, "batch": 3, "rng": 5, "train": True, "model_state": 7, "step": 11}


def told(function, **how):
    return by_name(function, tuple(VALUES), **how)(**VALUES)


def test_a_function_is_given_the_arguments_that_it_names():
    assert told(lambda params, batch: (params, batch)) == (2, 3)
    assert told(lambda step, batch, *, params, train: (step, batch, params, train)) == (11, 3, 2, True)


@given(st.lists(st.sampled_from([*VALUES]), unique=True))
def test_order_and_number_of_the_arguments_do_not_matter(names):
    function = eval(f"lambda {', '.join(names)}: dict({', '.join(f'{n}={n}' for n in names)})")
    assert told(function, required=()) == {name: VALUES[name] for name in names}


def test_rest_is_given_all_that_has_no_name_of_its_own():
    assert told(lambda params, **rest: (params, rest)) == (2, {k: VALUES[k] for k in VALUES if k != "params"})


def test_what_is_not_available_keeps_its_default():
    assert told(lambda params, batch, smoothing=0.1, *args: (params, smoothing, args)) == (2, 0.1, ())


def test_what_a_partial_has_fixed_stays_fixed():
    def loss(config, params, batch, train):
        return config, params, batch, train

    assert told(functools.partial(loss, "config", train=False)) == ("config", 2, 3, False)
    compiled = jax.jit(functools.partial(lambda params, batch, train: params + batch + train, train=0))
    assert told(compiled) == 5


def test_methods_callable_objects_and_compiled_functions_are_functions():
    class Loss:
        def __call__(self, batch, params):
            return params - batch

        def method(self, params, batch, rng):
            return params + batch + rng

    assert told(Loss()) == -1
    assert told(Loss().method) == 10
    assert told(jax.jit(lambda params, batch, step: jnp.add(params * batch, step))) == 17


def test_arguments_by_position_only_are_given_by_position():
    def loss(batch, params, other=1, /, *, rng):
        return batch, params, other, rng

    assert told(loss) == (3, 2, 1, 5)


def test_all_that_is_wrong_is_said_at_once_and_before_any_call():
    def my_loss(parms, batch, rngs, colour):
        raise AssertionError

    with pytest.raises(UsageError) as caught:
        by_name(my_loss, tuple(VALUES))
    message = str(caught.value)
    assert "my_loss(parms, batch, rngs, colour)" in message
    assert "'parms', which is not available. Did you mean 'params'?" in message
    assert "'rngs', which is not available. Did you mean 'rng'?" in message
    assert "'colour', which is not available.\n" in message
    assert "does not take 'params'" in message
    assert "Available: params, batch, rng, train, model_state, step." in message


def test_arguments_that_must_be_given_are_counted():
    policy = lambda step, metrics, least=5, *rest, known=1, **more: ...
    assert num_required(policy) == 2
    assert num_required(functools.partial(policy, metrics={})) == 1
    assert num_required(lambda *rest: ...) == 0
    with pytest.raises(UsageError, match="the policy must be a function; found 3"):
        num_required(3, "policy")


def test_arguments_without_names_are_refused():
    with pytest.raises(UsageError, match="does not take 'params'"):
        told(lambda *args: args)
    with pytest.raises(UsageError, match="loss max has no signature that says which arguments it takes"):
        told(max)
    with pytest.raises(UsageError, match="the metric must be a function; found 3"):
        told(3, role="metric")


PLACES = {"params": 2, "batch": 3, "key": 5}


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda a, b: (a, b), (2, 3)),
        (lambda a, b, c: (a, b, c), (2, 3, 5)),
        (lambda a, b, /, c, *, step: (a, b, c, step), (2, 3, 5, 11)),
        (lambda a, b, step: (a, b, step), (2, 3, 11)),
        (lambda a, step, b, c: (a, step, b, c), (2, 11, 3, 5)),
        (lambda a, b, l2=0.1: (a, b, l2), (2, 3, 0.1)),
        (lambda a, b, l2=0.1, rng=None, step=0: (a, b, l2, rng, step), (2, 3, 0.1, 5, 11)),
        (lambda a, b, *, key: (a, b, key), (2, 3, 5)),
        (lambda *everything: everything, (2, 3, 5)),
        (functools.partial(lambda config, a, b: (config, a, b), "config"), ("config", 2, 3)),
        (functools.partial(lambda a, b, step: (a, b, step), step=7), (2, 3, 7)),
        (jax.jit(lambda a, b: a + b), 5),
    ],
)
def test_values_in_order_go_to_what_has_no_default_and_others_by_name(function, returned):
    assert in_order(function, PLACES, named={"step": 11}, optional="key")() == returned


@pytest.mark.parametrize("function", [lambda a: 0, lambda a, b, c, d: 0, lambda a, b, *, colour: 0])
def test_a_function_of_another_number_of_values_is_told_how_it_is_called(function):
    with pytest.raises(UsageError, match=r"the loss .* is called with \(params, batch, key\). `key` may be"):
        in_order(function, PLACES, "loss", named={"step": 11}, optional="key")
