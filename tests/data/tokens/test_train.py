"""New tokenizers: what they write, and that nothing of a text is lost."""

import json
import re

import pytest
import tokenizers

import meshwright as mw
from meshwright.errors import UsageError

TEXTS = ["the cat and the hat", "über café: 数学 🙂", "def f(x): return x"] * 5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_comes_back_from_its_tokens(kind, tmp_path):
    place = mw.data.train_tokenizer(TEXTS, tmp_path / "new", vocab_size=300, kind=kind)
    tokenizer = mw.lm.tokenizer_of(place)
    for text in ("the hat", "\n\tñ 🦜 \x00 never seen", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 257 < mw.data.chat(place).files.tokenizer.get_vocab_size() <= 300


def test_pieces_of_words_have_a_token_for_what_is_unknown(tmp_path):
    place = mw.data.train_tokenizer(TEXTS, tmp_path, vocab_size=60, kind="wordpiece")
    tokenizer = mw.lm.tokenizer_of(place)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert "<unk>" in mw.data.chat(place).decode(tokenizer.encode("🦜"))


def test_documents_of_files_are_texts_too_and_the_same_texts_give_the_same_tokenizer(tmp_path):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    one = mw.data.train_tokenizer(tmp_path / "texts.jsonl", tmp_path / "one", vocab_size=300)
    two = mw.data.train_tokenizer(iter(TEXTS), tmp_path / "two", vocab_size=300)
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()


def test_special_tokens_are_single_and_the_template_is_beside(tmp_path):
    marks = ["<|user|>", "<|assistant|>"]
    template = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endfor %}"
    place = mw.data.train_tokenizer(
        TEXTS, tmp_path, vocab_size=300, special_tokens=marks, eos_token="<end>", chat_template=template
    )
    chats = mw.data.chat(place)
    assert [chats.files.tokenizer.token_to_id(mark) for mark in ("<end>", *marks)] == [0, 1, 2]
    assert chats.text([{"role": "user", "content": "cat"}]) == "<|user|>cat"
    assert chats.plain("the").tokens[-1] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "words"}, "kind='words' is not known; there are bpe, unigram, wordpiece"),
        ({"vocab_size": 200}, "vocab_size=200 is too small: bpe needs more than 257 tokens here"),
        ({"texts": []}, "there is no text"),
    ],
)
def test_what_cannot_be_trained_is_told(changes, message, tmp_path):
    given = {"texts": TEXTS, "vocab_size": 300} | changes
    with pytest.raises(UsageError, match=message):
        mw.data.train_tokenizer(given.pop("texts"), tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


def test_a_vocabulary_that_is_smaller_than_its_letters_is_refused_with_the_smallest(tmp_path):
    given = {"kind": "wordpiece", "special_tokens": ["<a>"]}
    with pytest.raises(UsageError, match=r"vocab_size=4 is too small: .* needs \d+ tokens") as told:
        mw.data.train_tokenizer(TEXTS, tmp_path / "new", vocab_size=4, **given)
    assert not (tmp_path / "new").exists()
    smallest = int(re.search(r"needs (\d+)", str(told.value))[1])
    with pytest.raises(UsageError, match=f"vocab_size={smallest - 1} is too small"):
        mw.data.train_tokenizer(TEXTS, tmp_path / "new", vocab_size=smallest - 1, **given)
    place = mw.data.train_tokenizer(TEXTS, tmp_path / "new", vocab_size=smallest, **given)
    assert mw.data.chat(place).files.tokenizer.get_vocab_size() == smallest


def test_a_tokenizer_is_not_written_over(tmp_path):
    mw.data.train_tokenizer(TEXTS, tmp_path, vocab_size=300)
    with pytest.raises(UsageError, match=r"has a tokenizer.json already"):
        mw.data.train_tokenizer(TEXTS, tmp_path, vocab_size=300)


def test_the_tokens_that_end_a_text_are_found_in_the_files(tmp_path):
    place = mw.data.train_tokenizer(["the cat"], tmp_path / "a", vocab_size=270, eos_token="<end>")
    end = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json")).token_to_id("<end>")
    assert mw.data._internal.end_tokens(place) == (end,)
    assert mw.data._internal.end_tokens(tmp_path) == ()
    (place / "config.json").write_text('{"eos_token_id": 7}')
    assert mw.data._internal.end_tokens(place) == (end, 7)
    (place / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, end, 5]}))
    assert mw.data._internal.end_tokens(place) == (end, 3, 5)
    (place / "tokenizer_config.json").write_text('{"eos_token": {"content": "<other>"}}')
    assert mw.data._internal.end_tokens(place) == (3, end, 5)
    (place / "generation_config.json").write_text('{"eos_token_id": "<end>"}')
    with pytest.raises(UsageError, match="say that '<end>' ends a text; expected a token's number"):
        mw.data._internal.end_tokens(place)
