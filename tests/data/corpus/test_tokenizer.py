"""Tokenizers as texts for another process: whose code they may run, and what tells one from another."""

import importlib
import json
import sys

import pytest

import meshwright as mw
from meshwright.data._corpus import _work
from meshwright.data._corpus._tokenizer import as_text

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
        mw.data._internal.tokenized(tmp_path / "a.txt", tmp_path, end="x", store=tmp_path / "stores")
    with pytest.raises(mw.errors.InputError, match=REFUSED):
        mw.data._internal.tokenized(tmp_path / "a.txt", tmp_path, store=tmp_path / "stores").block(0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", ["{}", "[1]", "no JSON", '{"model": 3, "model": 4'])
def test_a_file_that_is_no_tokenizer_is_named(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(mw.errors.InputError, match=r"tokenizer\.json is no tokenizer of the package"):
        mw.data._internal.tokenized(tmp_path / "a.txt", tmp_path, store=tmp_path / "stores")


def _module(folder, name, content):
    (folder / f"{name}.py").write_text(content)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_a_class_whose_file_was_edited_is_another_tokenizer(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "a.txt").write_text("word")
    stores = []
    for number in (1, 2, 1):
        told = f"class Own:\n    def encode(self, text):\n        return [{number}]\n"
        own = _module(tmp_path, "edited_tokenizer", told).Own()
        stores.append(mw.data._internal.tokenized(tmp_path / "a.txt", own, store=tmp_path / "stores"))
        _work.write_blocks(stores[-1].directory)
    assert [each.block(0).tokens.tolist() for each in stores] == [[1], [2], [1]]
    assert stores[0].digest == stores[2].digest != stores[1].digest


def test_a_class_that_no_other_process_can_import_is_refused_with_what_to_do(tmp_path):
    class Local:
        def encode(self, text):
            return [1]

    of_program = type("Own", (Local,), {"__module__": "__main__"})
    for each in (Local(), of_program()):
        with pytest.raises(mw.errors.UsageError, match=r"cannot import the tokenizer's class .*\n  Move it"):
            as_text(each)
