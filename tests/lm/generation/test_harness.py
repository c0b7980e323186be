"""Held to the scores that lm-evaluation-harness gives by its own backend: see golden/harness/make.py."""

import functools
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.lm._generation._harness import Harness
from meshwright.lm._generation._model import without_cache
from meshwright.lm._generation._text import Bytes
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._models._with_cache import with_cache

HERE = Path(__file__).parent / "golden/harness"
GOLDEN = json.loads((HERE / "golden.json").read_text())
PAIRS = without_cache(lambda params, tokens: params[tokens])  # the next token depends on the last one only


def requests(cases):
    return [SimpleNamespace(args=tuple(case["args"])) for case in cases]


@pytest.fixture(scope="module", params=["one device", "data=4,tensor=2"])
def harness(request):
    cfg = hugging_face.config(HERE / "model")
    target = jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0))
    params = mw.restore(hugging_face.open_model(HERE / "model"), target)
    if request.param != "one device":
        params = jax.device_put(
            params, mw.Layout(mw.make_mesh(request.param), decoder.RULES).shardings(params)
        )
    sizes = {"length": 96, "max_new_tokens": 24, "batch_size": 16}
    return Harness(with_cache(cfg), params, HERE / "model", begin=0, end=1, **sizes)


def check(found, cases):
    for (number, is_greedy), case in zip(found, cases, strict=True):
        assert number == pytest.approx(case["found"][0], rel=1e-4, abs=1e-4)
        assert is_greedy == case["found"][1]


@pytest.mark.slow
@pytest.mark.parametrize("task", GOLDEN["answers"])
def test_answers_in_the_schemas_of_tasks_score_as_by_the_harness_itself(harness, task):
    cases = GOLDEN["answers"][task]
    assert len(cases) >= 12
    check(harness.loglikelihood(requests(cases)), cases)


@pytest.mark.slow
def test_empty_and_long_contexts_and_what_the_model_would_write_score_as_by_the_harness_itself(harness):
    cases = GOLDEN["pairs"]
    assert {case["found"][1] for case in cases} == {True, False}
    check(harness.loglikelihood(requests(cases)), cases)


@pytest.mark.slow
def test_texts_longer_than_the_model_score_as_by_the_harness_itself(harness):
    found = harness.loglikelihood_rolling(requests(GOLDEN["rolling"]))
    assert found == pytest.approx([case["found"] for case in GOLDEN["rolling"]], rel=1e-4)


@pytest.mark.slow
def test_what_is_written_up_to_a_text_is_what_the_harness_itself_gets(harness):
    assert harness.generate_until(requests(GOLDEN["written"])) == [x["found"] for x in GOLDEN["written"]]


@pytest.fixture(scope="module")
def small():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(257, 257)), jnp.float32)
    return Harness(PAIRS, table, Bytes(), end=256, length=7, max_new_tokens=3)


def test_windows_of_a_long_text_hold_each_token_once_with_as_much_context_as_there_is_room_for(small):
    for length in (0, 1, 6, 7, 8, 21, 25):
        tokens = list(range(length))
        windows = small._windows(tokens)
        assert [token for _, row in windows for token in row] == tokens
        assert all(len(context) + len(row) <= 8 for context, row in windows)
        assert all(len(context) + len(row) == 8 for context, row in windows[1:])
        assert [256, *tokens][: len(windows[0][0])] == windows[0][0] if windows else not tokens


@pytest.mark.slow
def test_a_whole_text_is_the_sum_of_its_tokens_after_the_first_token_of_texts(small):
    whole, empty = requests([{"args": ["abcdefghijklmnop"]}, {"args": [""]}])
    found = small.loglikelihood_rolling([whole, empty])
    [row] = mw.lm.score(PAIRS, small._params, [list(b"abcdefghijklmnop")], [[256]])
    assert found == [pytest.approx(row.log_likelihood, rel=1e-5), 0.0]


def test_a_task_with_an_unknown_setting_or_too_many_tokens_is_named(small):
    with pytest.raises(UsageError, match="typical_p, which"):
        small.generate_until(requests([{"args": ["a", {"typical_p": 0.5}]}]))
    with pytest.raises(UsageError, match="asks for 9 new tokens; the model has 7"):
        small.generate_until(requests([{"args": ["a", {"until": ["b"], "max_gen_toks": 9}]}]))
    with pytest.raises(UsageError, match="has 8 tokens; the model reads 7"):
        small.loglikelihood(requests([{"args": ["a", "12345678"]}]))
    with pytest.raises(UsageError, match="does not say which token begins a text: give begin="):
        Harness(PAIRS, None, Bytes())


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="it is installed")
def test_without_the_harness_the_error_says_what_to_install():
    with pytest.raises(UsageError, match=r"pip install 'meshwright\[lm-eval\]'"):
        mw.lm.lm_eval(PAIRS, None, Bytes(), end=0)
