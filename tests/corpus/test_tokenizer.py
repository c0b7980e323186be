"""Tokenizers as texts for another process: whose code they may run, and what tells one from another."""

import json

import pytest

import meshwright as mw

MARKED = """import pathlib
pathlib.Path({!r}).write_text("ran")
class Chosen:
    def encode(self, text):
        return [1]
"""
REFUSED = r"is no tokenizer|not one of the package tokenizers"


@pytest.mark.parametrize("more", [{}, {"model": {"type": "BPE"}}, {"made_of": {}}])
def test_no_file_of_a_tokenizer_can_name_code_that_runs(more, tmp_path, monkeypatch):
    (tmp_path / "named_by_a_file.py").write_text(MARKED.format(str(tmp_path / "ran")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"module": "named_by_a_file", "class": "Chosen", **more})
    )
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(mw.errors.InputError, match=REFUSED):
        mw.corpus.tokenized(tmp_path / "a.txt", tmp_path, end="x", store=tmp_path / "stores")
    with pytest.raises(mw.errors.InputError, match=REFUSED):
        mw.corpus.tokenized(tmp_path / "a.txt", tmp_path, store=tmp_path / "stores").block(0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", ["{}", "[1]", "no JSON", '{"model": 3, "model": 4'])
def test_a_file_that_is_no_tokenizer_is_named(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(mw.errors.InputError, match=r"tokenizer\.json is no tokenizer of the package"):
        mw.corpus.tokenized(tmp_path / "a.txt", tmp_path, store=tmp_path / "stores")
