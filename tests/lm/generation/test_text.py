"""Texts in place of tokens."""

import json
import sys
import types

import pytest
import tokenizers

from meshwright.errors import UsageError
from meshwright.lm._generation._text import Bytes, GrowingText, Numbers, stop_sequences, tokenizer_of


def test_text_of_bytes_grows_by_whole_characters():
    text = GrowingText(Bytes())
    parts = [text.add([byte]) for byte in "aé€!".encode()]
    assert (parts, text.rest()) == (["a", "", "é", "", "", "€", "!"], "")


def test_an_incomplete_character_at_the_end_is_shown_as_such():
    text = GrowingText(Bytes())
    assert (text.add([97, 195]), text.rest()) == ("a", "\ufffd")


class Cleaning:
    """A tokenizer that changes what it said before, as those that clean spaces do."""

    words = ("if", " x", " ", "!", " =", " y")

    def decode(self, tokens):
        return "".join(self.words[token] for token in tokens).replace(" !", "!")


def test_a_text_goes_on_where_a_tokenizer_changes_what_it_said():
    text = GrowingText(Cleaning())
    assert "".join(text.add([token]) for token in range(6)) + text.rest() == "if x ! = y"
    assert GrowingText(Cleaning()).add(range(6)) == "if x! = y"


@pytest.fixture
def with_begin():
    """A tokenizer that puts a token before each text, as those of LLaMA and Gemma do."""
    words = {"<s>": 0, "<end>": 1, "a": 2, "b": 3, "ab": 4, "?": 5}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(words, [("a", "b")], unk_token="?"))
    inner.add_special_tokens(["<s>", "<end>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer_of(inner)


def test_tokens_of_a_text_that_ends_a_result_have_no_token_before_them(with_begin):
    assert with_begin.encode("<end>") == [0, 1]
    assert stop_sequences(with_begin, ["<end>", "b", "", "%"]) == ((1,), (3,))


def test_a_text_ends_with_a_stop_that_comes_in_other_tokens(with_begin):
    for pieces in ([[3, 2, 2, 3, 4, 2]], [[3, 2], [2, 3], [4, 2]]):
        text = GrowingText(with_begin, ["a b", "b b"])
        assert "".join(text.add(piece) for piece in pieces) + text.rest() == "b a a b"
        assert (text.tokens, text.has_ended) == ([3, 2, 2, 3], True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"add_bos_token": False, "bos_token": "<s>"},
            r"has add_bos_token=False, but tokenizer\.json puts <s> there",
        ),
        (
            {"add_eos_token": True, "eos_token": {"content": "<end>"}},
            r"add_eos_token=True, .* puts no <end> there",
        ),
        ({"add_bos_token": True, "bos_token": "<s>", "add_eos_token": False, "eos_token": "<end>"}, None),
        ({"add_eos_token": True, "eos_token": None}, None),
    ],
)
def test_files_that_say_differently_what_begins_a_text_are_refused(said, told, with_begin, tmp_path):
    with_begin.inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    if told is None:
        assert tokenizer_of(tmp_path).encode("b") == [0, 3]
        return
    with pytest.raises(UsageError, match=told):
        tokenizer_of(tmp_path)


def test_truncation_and_padding_in_a_file_of_a_tokenizer_do_not_count(tmp_path):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.enable_truncation(2)
    inner.enable_padding(length=4)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_of(tmp_path).encode("b a b") == [1, 0, 1]


def test_without_a_tokenizer_texts_are_numbers():
    assert tokenizer_of(None).encode("5, 12 7") == [5, 12, 7]
    with pytest.raises(UsageError, match=r"not a list of tokens.*\n.*tokenizer="):
        Numbers().encode("Once")


def test_an_object_with_encode_and_decode_is_taken_as_it_is():
    tokenizer = Bytes()
    assert tokenizer_of(tokenizer) is tokenizer
    with pytest.raises(UsageError, match="needs encode"):
        tokenizer_of(5)


def test_a_file_is_read_by_the_package_tokenizers(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text('{"model": "words"}')

    class Tokenizer:
        @staticmethod
        def from_str(text):
            assert text == '{"model": "words"}'
            made = types.SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
            made.encode = lambda text, **_: types.SimpleNamespace(ids=[len(word) for word in text.split()])
            return made

    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(Tokenizer=Tokenizer))
    for place in (tmp_path, str(tmp_path / "tokenizer.json")):
        tokenizer = tokenizer_of(place)
        assert (tokenizer.encode("once upon a"), tokenizer.decode([4, 1])) == ([4, 4, 1], "4 1")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        tokenizer_of(tmp_path / "none.json")


def test_a_missing_package_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'meshwright\[tokenizers\]'"):
        tokenizer_of(tmp_path)
