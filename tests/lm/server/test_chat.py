"""A chat with a run whose tokenizer is a folder with a template."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.lm._checkpoint_models import served_of_checkpoint
from meshwright.lm._models import decoder

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[2] / "data/tokens/golden"
MESSAGES = [{"role": "user", "content": "why?"}]


def served(folder):
    """The first state of an experiment, as a server takes it."""
    size = mw.data.chat(folder).files.tokenizer.get_vocab_size()
    cfg = decoder.Config(vocabulary=size, model=8, layers=1, heads=2, feed_forward=8)
    experiment = mw.Experiment(
        workdir="run",
        model=functools.partial(decoder.init, cfg),
        loss=functools.partial(decoder.loss, cfg),
        optimizer=optax.sgd(0.1),
        input=mw.Input({"tokens": np.ones((8, 6), np.int32)}, batch_size=8),
        max_steps=1,
        samples=mw.lm.Generation(mw.lm.with_cache(cfg), tokenizer=str(folder)),
    )
    return served_of_checkpoint(experiment, "chats")[1]


def test_a_folder_with_a_template_answers_chats_and_its_end_tokens_end_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(GOLDEN / "tokenizer", tmp_path / "tokenizer"))
    assert served(folder).chat is None
    shutil.copy(GOLDEN / "chatml.jinja", folder / "chat_template.jinja")
    chats, found = mw.data.chat(folder), served(folder)
    assert chats.decode(found.chat(MESSAGES)) == chats.text(MESSAGES, reply=True)
    end = chats.files.tokenizer.token_to_id(chats.files.special["eos_token"])
    assert found.decoding.stop == ((end,),)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 1, 3]}))
    assert served(folder).decoding.stop == ((end,), (1,), (3,))
