"""Requests and answers of OpenAI's protocol, without a server: what is read, and where a text is cut."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import meshwright as mw
from meshwright.lm._server._answers import Answer, as_event
from meshwright.lm._server._guard import is_loopback
from meshwright.lm._server._requests import (
    Chat,
    Completion,
    RefusedRequest,
    generation_requests,
    parsed,
    prompts_of,
)

POOL = SimpleNamespace(vocabulary=256, max_new_tokens=lambda length: 64 - length)
PIECES = st.lists(st.integers(0, 5), max_size=20)


def request(**fields):
    return parsed(json.dumps(fields).encode(), Completion, "m")


def wanted(decoding=mw.lm._internal.GREEDY, **fields):
    asked = request(prompt="ab", **fields)
    return generation_requests(asked, prompts_of(asked, mw.lm.Bytes()), decoding, POOL)


@given(text=st.text())
@example(text="\x85 \u2028 \u2029")
def test_an_event_is_one_line_also_for_clients_that_split_lines_as_unicode_does(text):
    (line, _) = as_event({"text": text}).decode().splitlines()
    assert json.loads(line.removeprefix("data: ")) == {"text": text}


@example(text="abc", stops=["bc"], sizes=[2])
@given(text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4)), sizes=PIECES)
def test_a_text_is_cut_before_its_first_end_however_it_comes(text, stops, sizes):
    answer, found, at = Answer(mw.lm.Bytes(), stops, ()), "", 0
    for size in [*sizes, len(text)]:
        piece = np.frombuffer(text[at : at + size].encode(), np.uint8).astype(np.int32)
        at = min(at + size, len(text))
        found += answer.add(piece, is_last=at == len(text))
        if answer.reason:
            break
    firsts = [text.find(stop) for stop in stops if stop in text]
    if not firsts:
        assert (found, answer.reason) == (text, "length")
        return
    assert answer.reason == "stop"
    assert text.startswith(found)
    assert not any(stop in found for stop in stops)
    assert any(text[len(found) :].startswith(stop) for stop in stops)


def test_a_stop_sequence_of_the_model_is_not_in_the_text():
    for sizes in ([1] * 6, [6], [2, 4]):
        answer, found, rest = (
            Answer(mw.lm.Bytes(), [], ((101, 102),)),
            "",
            np.array([97, 98, 99, 100, 101, 102]),
        )
        for size in sizes:
            now, rest = rest[:size], rest[size:]
            found += answer.add(now, is_last=not rest.size)
        assert (found, answer.reason, answer.num_tokens) == ("abcd", "stop", 6)


def test_a_special_token_that_a_request_stops_at_ends_the_answer_though_it_is_in_no_text():
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0, "a": 1, "b": 2}, unk_token="a"))
    inner.add_special_tokens(["<end>"])
    answer = Answer(mw.lm.tokenizer_of(inner), ["<end>"], ())
    text = answer.add(np.array([1, 2]), is_last=False) + answer.add(np.array([1, 0, 2]), is_last=False)
    assert (text, answer.reason) == ("a b a", "stop")


def test_a_request_without_settings_gets_those_of_the_run():
    of_run = mw.lm.Decoding(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, max_new_tokens=12)
    [row] = wanted(of_run, seed=3)
    assert row[1:] == (12, 0.7, 5, 0.9, 0.1, 3)
    [row] = wanted(of_run, seed=3, temperature=0, top_k=-1, top_p=1, min_p=0, max_tokens=4)
    assert row[1:] == (4, 0, None, 1, 0, 3)


def test_the_newer_name_of_the_bound_of_new_tokens_is_read_too():
    assert wanted(max_completion_tokens=2)[0].max_new_tokens == 2


def test_answers_of_one_request_are_drawn_apart_and_requests_without_a_seed_too():
    assert [row.seed for row in wanted(n=3, seed=7)] == [7, 8, 9]
    assert wanted()[0].seed != wanted()[0].seed


NOTHING = {
    "echo": False,
    "logprobs": None,
    "logit_bias": {},
    "tools": [],
    "presence_penalty": 0,
    "best_of": 1,
    "repetition_penalty": 1.0,
    "prompt_logprobs": None,
    "min_tokens": 0,
    "ignore_eos": False,
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_is_not_here_is_refused_by_name_and_nothing_asked_for_is_not(name):
    request(prompt="a", **{name: NOTHING[name]}, user="me")
    with pytest.raises(RefusedRequest, match=f"this server does not have `{name}`") as refused:
        request(prompt="a", **{name: 5})
    assert (refused.value.status, refused.value.param) == (400, name)


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_body_is_a_request_or_is_refused(value):
    for body in (value, {"prompt": value}, {"prompt": "a", "stop": value, "n": value}, {"messages": value}):
        for kind in (Completion, Chat):
            try:
                asked = parsed(json.dumps(body).encode(), kind, "m")
            except RefusedRequest as refused:
                asked, status = None, refused.status
            assert isinstance(asked, kind) or status == 400


@pytest.mark.parametrize("prompt", [["", 0] * 1000, [{}] * 1000, [[""] * 1000], [[]] * 1000])
def test_a_list_of_a_thousand_mistakes_is_refused_at_the_first(prompt):
    with pytest.raises(ValidationError) as refused:
        Completion.model_validate({"prompt": prompt})
    assert refused.value.error_count() <= 4  # one for each form that a prompt can have


def test_loopback_is_known_by_name_and_number():
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.com")))
