"""Configs of tokenizers and of generation: keys that are not known are refused by all that read them."""

import json
import re
import shutil
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import UsageError

TOKENIZER = Path(__file__).with_name("golden") / "tokenizer"
READERS = {
    "tokenizer_config.json": [mw.data.chat, mw.data._internal.end_tokens, mw.lm.tokenizer_of],
    "generation_config.json": [mw.data._internal.end_tokens],
}


@pytest.fixture
def with_config(tmp_path):
    """Return a function that makes a tokenizer's folder with more keys in one of its configs."""

    def make(file, more):
        folder = Path(shutil.copytree(TOKENIZER, tmp_path / "tokenizer"))
        config = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(config | more))
        return folder

    return make


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("tokenizer_config.json", "split_special_tokens", True),
        ("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["own.py", None]}),
        ("generation_config.json", "suppress_tokens", [1, 2]),
        ("generation_config.json", "stop_strings", ["."]),
        ("generation_config.json", "forced_eos_token_id", 0),
    ],
)
def test_a_key_that_is_not_known_is_refused_with_its_value(file, key, value, with_config):
    folder = with_config(file, {key: value})
    for read in READERS[file]:
        with pytest.raises(UsageError, match=rf"{file} has keys .*: {key}: {re.escape(repr(value))}\."):
            read(folder)


@pytest.mark.parametrize(
    ("file", "more"),
    [
        (
            "tokenizer_config.json",
            {"image_token": "<image>", "padding_side": "left", "split_special_tokens": False, "legacy": None},
        ),
        (
            "generation_config.json",
            {"repetition_penalty": 1.05, "top_p": 0.8, "eos_token_id": [1], "suppress_tokens": []},
        ),
    ],
)
def test_keys_that_are_known_or_say_nothing_are_taken(file, more, with_config):
    folder = with_config(file, more)
    for read in READERS[file]:
        read(folder)
