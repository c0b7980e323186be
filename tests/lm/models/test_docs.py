"""The page on models is true: its examples run, one after the other."""

import functools
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.checkpoints._formats._open import open_source
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._models._map import Map, Reshape, Row, Transpose

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "llama", "Llama-3.2-1B")
    names = {"rows": {"tokens": np.zeros((8, 5), np.int32)}, "mw": mw, "jax": jax, "optax": optax}
    names |= {"decoder": decoder, "hugging_face": hugging_face, "functools": functools}
    names |= {"Map": Map, "Row": Row, "Transpose": Transpose, "Reshape": Reshape}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(example, names)
    before, after = (open_source(path).arrays() for path in ("Llama-3.2-1B", "tuned"))
    assert after.keys() == before.keys()
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        np.testing.assert_allclose(
            np.asarray(after[name]).astype(float), np.asarray(array).astype(float), atol=0.01
        )


def test_the_model_types_of_the_page_are_those_that_there_are():
    listed = re.search(r"`model_type`s: (.*?), as versions", PAGE.read_text(), re.DOTALL)[1]
    for kind in re.split(r",\s+|\s+and\s+", listed):
        config = json.loads((GOLDEN / {"gemma3_text": "gemma3"}.get(kind, kind) / "config.json").read_text())
        assert config["model_type"] == kind
        hugging_face.config(config)
