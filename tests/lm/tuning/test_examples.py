"""Chats, prompts with completions and texts in a file, as rows for tuning."""

import json
import shutil
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.lm._models import hugging_face
from meshwright.lm._tuning._examples import read_pair_rows, read_rows
from meshwright.lm._tuning._tune import tuning

TOKENS = Path(__file__).parents[2] / "data/tokens/golden"
LLAMA = Path(__file__).parents[2] / "lm/models/golden/llama"
CHAT = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "the cat"}]


@pytest.fixture
def model(tmp_path):
    """The folder of a tokenizer with a template."""
    place = shutil.copytree(TOKENS / "tokenizer", tmp_path / "model")
    shutil.copy(TOKENS / "headers.jinja", place / "chat_template.jinja")
    return place


def file_of(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_rows_of_all_forms_are_tokens_and_weights(model, tmp_path):
    chats = mw.data.chat(model)
    given = [
        {"messages": CHAT},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"prompt": "why? ", "completion": "the cat"},
        {"text": "the cat"},
        {"tokens": [5, 6, 7], "weights": [0, 1, 1]},
    ]
    rows = read_rows(file_of(tmp_path, *given), 64, model)
    encoded = [chats.encode(CHAT), chats.answer("why? ", "the cat"), chats.plain("the cat")]
    for row, each in zip((0, 2, 3), encoded, strict=True):
        end = len(each.tokens)
        assert rows["tokens"][row, :end].tolist() == each.tokens
        assert rows["weights"][row, :end].tolist() == each.token_weights
        assert rows["segments"][row].tolist() == [1] * end + [0] * (rows["tokens"].shape[1] - end)
    assert rows["tokens"][0].tolist() == rows["tokens"][1].tolist()
    assert rows["weights"][0].tolist() == rows["weights"][1].tolist()


def test_each_conversation_keeps_its_line_between_lines_of_other_forms(model, tmp_path):
    encoded = mw.data.chat(model).encode(CHAT)
    tokens = {"tokens": [1, 2, 3], "messages": [{"role": "user", "content": "not read"}]}
    rows = read_rows(file_of(tmp_path, {"text": "the cat"}, tokens, {"messages": CHAT}), 64, model)
    assert rows["tokens"][2, : len(encoded.tokens)].tolist() == encoded.tokens


def test_rows_of_pairs_are_inputs_and_targets(model, tmp_path, caplog):
    given = [{"prompt": "why?", "completion": "the cat"}, {"inputs": [5, 6, 7, 8, 9], "targets": [4]}]
    rows = read_pair_rows(file_of(tmp_path, *given), 4, model)
    for name, text in (("inputs", "why?"), ("targets", "the cat")):
        expected = mw.data.chat(model).plain(text).tokens[:4]
        assert rows[name][0, : len(expected)].tolist() == expected
    assert rows["inputs"][1].tolist() == [5, 6, 7, 8]
    assert rows["is_target"].sum(1)[1] == 1
    assert "1 of 2 examples have more than 4 inputs and are cut: 1 of all" in caplog.text
    for row in ({"text": "why?"}, {"inputs": [], "targets": [4]}, {"inputs": [4], "targets": [-1]}):
        with pytest.raises(InputError, match=r"line 1: expected .*prompt.*inputs"):
            read_pair_rows(file_of(tmp_path, row), 64, model)


def test_what_is_cut_is_told_with_counts(model, tmp_path, caplog):
    long = {"tokens": list(range(20))}
    lost = {"tokens": list(range(12)), "weights": [0] * 10 + [1, 1]}
    rows = read_rows(file_of(tmp_path, long, lost, {"tokens": [1, 2, 3]}), 8, model)
    assert rows["tokens"].shape == (2, 8)
    assert (
        "2 of 3 examples have more than 8 tokens and are cut: 16 of all 35 tokens are left out" in caplog.text
    )
    assert "1 of 3 examples are left out, as none of their first 8 tokens counts in the loss" in caplog.text
    with pytest.raises(InputError, match="in no example does one of the first 8 tokens count"):
        read_rows(file_of(tmp_path, lost), 8, model)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": []}, "line 2: messages must be a list with one message or more"),
        ({"messages": [{"role": "user"}]}, "line 2: message 1, of user, has no content"),
        ({"prompt": "why?", "completion": CHAT}, "line 2: prompt and completion must both be texts"),
        ({"text": ["a", "b"]}, "line 2: expected .*messages"),
        ({"text": ""}, "line 2: it has 1 tokens, and nothing to predict"),
    ],
)
def test_an_error_names_the_file_and_the_line(row, message, model, tmp_path):
    with pytest.raises(InputError, match=rf"data.jsonl, {message}"):
        read_rows(file_of(tmp_path, {"messages": CHAT}, row), 64, model)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "x \ud800"}, *CHAT[1:]]},
        {"prompt": "why?", "completion": "x \ud800"},
        {"text": "x \ud800"},
    ],
)
def test_half_of_a_surrogate_pair_is_named_with_its_line(row, model, tmp_path):
    with pytest.raises(InputError, match=r"data\.jsonl, line 2: .*is \\ud800, half of a surrogate pair"):
        read_rows(file_of(tmp_path, {"text": "the cat"}, row), 64, model)


def test_the_tokenizer_of_another_model_is_noticed(model, tmp_path):
    for name in ("config.json", *(path.name for path in LLAMA.glob("model*"))):
        shutil.copy(LLAMA / name, model)
    with pytest.raises(InputError, match=r"line 1 has the token \d+, but the model has 48"):
        tuning(str(model), str(file_of(tmp_path, {"messages": CHAT})))


def test_tokenizer_template_and_generation_config_are_copied_beside_what_is_tuned(model, tmp_path):
    (model / "generation_config.json").write_text("{}")
    (tmp_path / "adapter").mkdir()
    copied = hugging_face.copy_companions(model, tmp_path / "adapter")
    names = {"chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in copied} == {path.name for path in (tmp_path / "adapter").iterdir()} == names
