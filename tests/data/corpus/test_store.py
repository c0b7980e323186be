import itertools
import json
import os
import signal
import time

import numpy as np
import pytest

import meshwright as mw
from data.corpus.files import FORMS, TEXTS, json_lines
from data.corpus.tokenizers_ import whole, words
from meshwright.data._corpus import _blocks, _store, _streams, _work

BYTES = mw.lm.Bytes()


@pytest.fixture
def small(monkeypatch):
    """Blocks of 40 tokens and more, so that a few documents make several; and twelve texts at a time."""
    monkeypatch.setattr(_blocks, "FIRST_TOKENS", 40)
    monkeypatch.setattr(_blocks, "MOST_TOKENS", 320)
    monkeypatch.setattr(_work, "_MOST_TOGETHER", 12)


@pytest.fixture
def made(tmp_path):
    """Return a function that makes a store of texts, and tokenizes in this process."""

    def make(paths, tokenizer=None, **settings):
        store = mw.data._internal.tokenized(
            paths, tokenizer or words(), store=tmp_path / "stores", **settings
        )
        _work.write_blocks(store.directory)
        return store

    return make


def write(path, content):
    path.write_bytes(content)
    return path


def blocks(store):
    return list(itertools.takewhile(lambda block: block is not None, map(store.block, itertools.count())))


def documents(store):
    found = blocks(store)
    pieces = (np.split(block.tokens, np.cumsum(block.lengths)[:-1]) for block in found)
    return [tokens.tolist() for each in pieces for tokens in each]


def test_every_document_is_tokenized_whole_and_once_in_order(tmp_path, made, small):
    write(tmp_path / "a.jsonl", json_lines(TEXTS[:90]))
    write(tmp_path / "b.parquet", FORMS["texts.parquet"](TEXTS[90:]))
    store = made([tmp_path / "a.jsonl", tmp_path / "b.parquet"], end="<|end|>")
    assert documents(store) == [[*tokens, 0] for tokens in whole(TEXTS)]
    assert [len(block.tokens) >= size for block, size in zip(blocks(store), (40, 80, 160), strict=False)]
    assert len(blocks(store)) > 4


def test_another_process_tokenizes_and_the_first_block_is_there_before_the_last(tmp_path):
    texts = ["word " * 200] * 4000
    store = mw.data._internal.tokenized(
        write(tmp_path / "a.jsonl", json_lines(texts)), words(), store=tmp_path
    )
    assert store.block(0).lengths.tolist() == [200] * 656
    assert _blocks.num_blocks(store.directory) is None
    os.kill(store._worker._process.pid, signal.SIGKILL)
    with pytest.raises(mw.MeshwrightError, match="the process that tokenizes ended with code -9"):
        store.block(9)
    assert sum(map(len, documents(store))) == 200 * 4000  # another one goes on
    assert (store.directory / "complete.json").exists()


def test_little_is_read_before_the_first_block_however_large_the_texts_are(tmp_path, monkeypatch):
    file = write(tmp_path / "a.jsonl", json_lines(["word " * 200] * 4000))
    os.truncate(file, 50 << 30)  # what follows takes no space on the disk
    sizes, opened = [], _streams.opened

    class Counted:
        def __init__(self, file):
            self.stream = opened(file)
            self.close = self.stream.close

        def read(self, size):
            sizes.append(size)
            return self.stream.read(size)

    def stop(*args):
        raise InterruptedError

    monkeypatch.setattr(_streams, "opened", Counted)
    monkeypatch.setattr(_store, "opened", None)
    monkeypatch.setattr(_work, "write_block", stop)
    store = mw.data._internal.tokenized(file, words(), store=tmp_path)
    with pytest.raises(InterruptedError):
        _work.write_blocks(store.directory)
    assert 0 < sum(sizes) < 4 << 20


def test_a_process_that_tokenizes_ends_when_its_parent_does(tmp_path):
    texts = write(tmp_path / "a.jsonl", json_lines(["word " * 200] * 20_000))
    store = mw.data._internal.tokenized(texts, words(), store=tmp_path)
    store.wait_for(0)
    process = store._worker._process
    process.stdin.close()  # as the system does for a parent that is killed
    assert process.wait(400) == 0
    assert _blocks.num_blocks(store.directory) is None
    store.close()


@pytest.mark.slow
def test_a_second_process_for_the_same_store_ends_in_good_order(tmp_path):
    texts = write(tmp_path / "a.jsonl", json_lines(["word " * 200] * 20_000))
    store = mw.data._internal.tokenized(texts, words(), store=tmp_path)
    store.wait_for(0)
    second = _store._Worker(store.directory)
    assert second._process.wait(400) == 0
    assert not second.is_at_work()
    store.close()


@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_a_store_that_was_left_unfinished_is_continued_with_the_same_bytes(
    killed_after, tmp_path, made, small, monkeypatch
):
    texts = [
        write(tmp_path / "a.jsonl", json_lines(TEXTS[:90])),
        write(tmp_path / "b.jsonl", json_lines(TEXTS)),
    ]
    once = {path.name: path.read_bytes() for path in made(texts).directory.glob("0*")}
    written = []

    def write_some(*args):
        if len(written) == killed_after:
            raise InterruptedError
        written.append(args[1])
        return _blocks.write_block(*args)

    monkeypatch.setattr(_work, "write_block", write_some)
    with pytest.raises(InterruptedError):
        made(texts, end=None, begin=None, separator="other")
    monkeypatch.setattr(_work, "write_block", _blocks.write_block)
    again = made(texts, end=None, begin=None, separator="other")
    assert {path.name: path.read_bytes() for path in again.directory.glob("0*")} == once


def test_the_same_texts_elsewhere_share_a_store_and_others_do_not(tmp_path, made):
    first = made(write(tmp_path / "a.jsonl", json_lines(TEXTS)))
    assert made(write(tmp_path / "b.jsonl", json_lines(TEXTS))).directory == first.directory
    others = [
        made(tmp_path / "a.jsonl", end=0),
        made(tmp_path / "a.jsonl", BYTES),
        made(write(tmp_path / "a.jsonl", json_lines(TEXTS[1:]))),
    ]
    assert len({first.directory, *(each.directory for each in others)}) == 4
    assert len({first.digest, *(each.digest for each in others)}) == 4


def test_other_texts_of_the_same_names_and_sizes_are_told_by_their_contents(tmp_path, made):
    first = made(write(tmp_path / "a.jsonl", json_lines(["one two"])))
    again = made(write(tmp_path / "a.jsonl", json_lines(["two one"])))
    assert again.digest != first.digest


def test_large_texts_are_known_by_the_times_of_their_files(tmp_path, made, monkeypatch):
    monkeypatch.setattr(_store, "_READ_WHOLE", 100)
    file = write(tmp_path / "a.jsonl", json_lines(TEXTS))
    first = made(file)
    assert made(file).directory == first.directory
    os.utime(file, ns=(0, time.time_ns()))
    assert made(file).directory != first.directory
    assert made(file).digest == first.digest


def test_tokens_are_taken_as_they_are_and_other_values_are_refused_by_name(tmp_path, made):
    lines = b'{"tokens": [1, 2]}\n{"tokens": "word a"}\n'
    assert documents(made(write(tmp_path / "a.jsonl", lines), field="tokens")) == [
        [1, 2],
        whole(["word a"])[0],
    ]
    with pytest.raises(mw.errors.ExamplesError, match=r"b\.jsonl, line 1: a document is a text or a list"):
        made(write(tmp_path / "b.jsonl", b'{"text": {"a": 1}}'))


def test_a_damaged_text_is_named_by_the_process_that_tokenizes(tmp_path):
    file = write(tmp_path / "a.jsonl", json_lines(TEXTS) + b"{broken")
    store = mw.data._internal.tokenized(file, words(), store=tmp_path)
    with pytest.raises(mw.errors.ExamplesError, match=r"a\.jsonl, line 201: not a JSON object"):
        store.block(0)


def test_a_text_that_changes_meanwhile_is_named(tmp_path):
    file = write(tmp_path / "a.jsonl", json_lines(TEXTS))
    store = mw.data._internal.tokenized(file, words(), store=tmp_path)
    file.write_bytes(json_lines(TEXTS[1:]))
    with pytest.raises(mw.errors.InputError, match=r"a\.jsonl has changed"):
        _work.write_blocks(store.directory)


@pytest.mark.parametrize("name", ["000001.tokens", "000001.json", "complete.json"])
def test_a_damaged_store_is_named_and_no_wrong_token_is_read(name, tmp_path, made, small):
    store = made(write(tmp_path / "a.jsonl", json_lines(TEXTS)))
    content = bytearray((store.directory / name).read_bytes())
    content[len(content) // 2] ^= 8
    (store.directory / name).write_bytes(content)
    expected = rf"{name}|000001.tokens is damaged"
    with pytest.raises(mw.errors.DamagedError, match=expected):
        blocks(store)


def test_a_tokenizer_is_given_in_any_form(tmp_path):
    words().save(str(tmp_path / "tokenizer.json"))

    class OfTransformers:
        backend_tokenizer = words()

    texts = write(tmp_path / "a.txt", b"word")
    given = [words(), tmp_path, str(tmp_path / "tokenizer.json"), OfTransformers()]
    assert len({mw.data._internal.tokenized(texts, each, store=tmp_path).digest for each in given}) == 1
    with pytest.raises(mw.errors.UsageError, match="of type int cannot be sent"):
        mw.data._internal.tokenized(texts, 3)
    with pytest.raises(mw.errors.UsageError, match=r"no token '<eos>'"):
        mw.data._internal.tokenized(texts, words(), end="<eos>", store=tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "?"}))
    with pytest.raises(mw.errors.InputError, match="not one of the package tokenizers"):
        mw.data._internal.tokenized(texts, tmp_path, end="x", store=tmp_path)


class Indexed:
    """As a data set of a library: items by number, some of them empty, and what JSON does not have."""

    def __init__(self, texts, broken=None):
        self.texts, self.broken = texts, broken

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, number):
        if number == self.broken:
            raise OSError("the disk is gone")
        text = self.texts[number]
        return None if text is None else {"text": text.encode() if number % 2 else text, "id": number}


def test_documents_of_an_object_are_tokenized_as_those_of_files(tmp_path):
    texts = [None if i % 7 == 3 else text for i, text in enumerate(TEXTS)]
    store = mw.data._internal.tokenized(Indexed(texts), words(), store=tmp_path)
    assert documents(store) == whole([text for text in texts if text])
    assert (
        mw.data._internal.tokenized(Indexed(list(texts)), words(), store=tmp_path).directory
        == store.directory
    )
    others = [
        mw.data._internal.tokenized(Indexed(each), words(), store=tmp_path) for each in (texts[1:], ["word"])
    ]
    assert len({store.digest, *(each.digest for each in others)}) == 3


@pytest.mark.slow
def test_documents_of_an_object_are_sent_again_to_a_process_that_continues(tmp_path):
    texts = [f"word {i}" + " word" * 200 for i in range(1500)]
    store = mw.data._internal.tokenized(Indexed(texts), words(), store=tmp_path)
    first = store.block(0)
    store.close()
    found = documents(store)
    assert found == whole(texts)
    assert found[0] == first.tokens[: first.lengths[0]].tolist()


def test_a_damaged_document_of_an_object_is_named(tmp_path):
    with pytest.raises(
        mw.errors.ExamplesError, match=r"Indexed, document 6: it cannot be read: OSError: the disk"
    ):
        mw.data._internal.tokenized(Indexed(TEXTS, broken=5), words(), store=tmp_path)
    many = Indexed(["word"] * 30_000, broken=20_001)
    store = mw.data._internal.tokenized(many, words(), store=tmp_path)
    with pytest.raises(mw.errors.ExamplesError, match=r"document 20002: it cannot be read"):
        store.block(0)
    with pytest.raises(
        mw.errors.ExamplesError, match=r"document 1: there is no field 'txt'; it has text, id"
    ):
        mw.data._internal.tokenized(Indexed(TEXTS), words(), field="txt", store=tmp_path)
    with pytest.raises(mw.errors.UsageError, match=r"is of type dict\. Give paths, or one object"):
        mw.data.files_of([{"text": "word"}])
