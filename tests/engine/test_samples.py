"""Samples of a model in the files and on the page of a run: texts, numbers and pictures."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.errors import UsageError


def pictures(params, key):
    noise = jax.random.uniform(key, (2, 4, 6))
    return [{"name": f"{i}", "size": i, "picture": mw.observe.Image.of(x)} for i, x in enumerate(noise)]


def sampled(directory, function, **more):
    described = experiment(directory, max_steps=3, **more)
    return dataclasses.replace(described, samples=mw.engine.Samples(function, when=2))


def test_samples_of_a_function_are_in_files_and_on_the_page_of_the_run(tmp_path):
    mw.run(sampled(tmp_path, pictures))
    folder = tmp_path / "outputs/samples"
    assert sorted(path.name for path in folder.glob("*.jsonl")) == [
        "step_00000002.jsonl",
        "step_00000003.jsonl",
    ]
    rows = [json.loads(line) for line in (folder / "step_00000003.jsonl").read_text().splitlines()]
    assert rows[1] == {"name": "1", "size": 1, "picture": "step_00000003/1-picture.png"}
    assert (folder / rows[1]["picture"]).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "Samples of the model, step 3" in page
    assert page.count('<img src="data:image/png;base64,') == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda params: [{"picture": np.zeros((4, 4))}],
            r"is an array \[4, 4\].*\n.*mw.observe.Image.of\(pixels\)",
        ),
        (lambda params: ["a text"], "sample 0 is of type str: return a mapping"),
        (lambda params: [{"a/b": 1}], "sample 0 has the name 'a/b'"),
    ],
)
def test_a_function_that_returns_no_samples_is_named_with_what_to_return(tmp_path, function, message):
    with pytest.raises(UsageError, match=message):
        mw.run(sampled(tmp_path, function))


def test_a_value_that_makes_no_samples_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"Experiment.samples takes mw.engine.Samples or mw.lm.Generation"):
        dataclasses.replace(experiment(tmp_path), samples=pictures)
