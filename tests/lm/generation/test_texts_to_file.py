"""Texts of a predictor that generates: in the order of the prompts, resumed to the byte, over processes."""

import json
import os
import signal
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.launch._internal import launch_local
from meshwright.lm._generation._text import Bytes
from meshwright.lm._models import decoder
from meshwright.lm._models._with_cache import with_cache

CFG = decoder.Config(vocabulary=256, model=16, layers=1, heads=2, feed_forward=16)
DRAWN = mw.lm.Decoding(max_new_tokens=12, temperature=1.0, stop=tuple(range(0, 256, 7)))  # rows end anywhere
PROMPTS = ["Once", "a", "upon a time there was", *(f"line {i}" for i in range(37))]


class Telling(mw.Deployer):
    """Remembers the progress that it is asked to show."""

    def progress(self, items, total, desc):
        self.total = total
        return items


class Hex(Bytes):
    """Bytes as hexadecimal digits, all of which JSON keeps; it may kill its process."""

    def __init__(self, lives=10**9):
        self.lives = lives

    def decode(self, tokens):
        self.lives -= 1
        if self.lives < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(tokens).hex()


def params():
    return jax.tree.map(np.asarray, decoder.init(CFG, jax.random.key(0)))


def predictor(mesh="data=2,tensor=4", lives=10**9, decoding=DRAWN):
    generation = mw.lm.Generation(with_cache(CFG), Hex(lives), decoding=decoding)
    return mw.Predictor(Telling(seed=0, mesh=mesh, verbose=False), predict=generation)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "texts.jsonl"
    assert predictor().predict(PROMPTS, 4, params(), to=path, seed=3) == path
    return path.read_bytes()


@pytest.mark.slow
def test_the_file_has_the_text_of_each_prompt_in_order(uninterrupted):
    tokens = [list(prompt.encode()) for prompt in PROMPTS]
    rows = mw.lm.generate(with_cache(CFG), params(), tokens, DRAWN, seed=3)
    lines = [json.loads(line) for line in uninterrupted.splitlines()]
    assert lines == [bytes(row.tolist()).hex() for row in rows]
    assert len({len(line) for line in lines}) > 3


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from lm.generation.test_texts_to_file import PROMPTS, params, predictor
predictor(lives=int(sys.argv[3])).predict(PROMPTS, 4, params(), to=sys.argv[2], seed=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lives", [0, 13, 39])
def test_a_killed_call_goes_on_and_comes_to_the_same_bytes(python, tmp_path, uninterrupted, lives):
    path, tests = tmp_path / "texts.jsonl", Path(__file__).parents[2]
    words = [*python, "-c", KILLED, str(tests), str(path), str(lives)]
    assert subprocess.run(words, env=os.environ).returncode == -signal.SIGKILL
    part = path.with_name("texts.jsonl.part")
    assert part.read_bytes().count(b"\n") == lives
    with part.open("ab") as file:
        file.write(b'"half a li')
    one = predictor()
    one.predict(PROMPTS, 4, params(), to=path, seed=3)
    assert path.read_bytes() == uninterrupted
    assert one._deployer.total == len(PROMPTS) - lives


@pytest.mark.slow
def test_any_mesh_and_number_of_slots_write_the_same_bytes(tmp_path, uninterrupted):
    path = predictor("data=8").predict(PROMPTS, 1, params(), to=tmp_path / "texts.jsonl", seed=3)
    assert path.read_bytes() == uninterrupted


@pytest.mark.slow
def test_a_file_of_other_settings_is_not_continued(tmp_path, uninterrupted):
    path = tmp_path / "texts.jsonl"
    predictor().predict(PROMPTS, 4, params(), to=path, seed=3)
    with pytest.raises(UsageError, match=r"decoding was .*temperature=1\.0.* is now"):
        predictor(decoding=mw.lm.Decoding(max_new_tokens=12)).predict(PROMPTS, 4, params(), to=path, seed=3)


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one(python, tmp_path, uninterrupted):
    program, path = Path(__file__).with_name("texts_on_hosts.py"), tmp_path / "texts.jsonl"
    assert launch_local([*python, str(program), str(path)], 2, grace_seconds=20) == 0
    assert path.read_bytes() == uninterrupted


def test_prompts_are_texts_tokens_or_have_the_name_prompt():
    deployer = mw.Deployer(seed=0, verbose=False)
    with pytest.raises(UsageError, match="no use for output"):
        mw.Predictor(deployer, predict=mw.lm.Generation(with_cache(CFG)), output=list)
    one = mw.Predictor(deployer, predict=mw.lm.Generation(with_cache(CFG), Bytes()))
    with pytest.raises(UsageError, match="example 1 has no prompt; it has text"):
        one.predict([{"prompt": "a"}, {"text": "b"}], 1, {"w": np.zeros(8, np.float32)})
