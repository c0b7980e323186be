"""`help()` explains what it shows: each field of each description."""

import dataclasses
import inspect
import pydoc
import re

import pytest

import meshwright as mw
from meshwright.base._docstrings import documented

DESCRIPTIONS = [
    *(
        x
        for x in (getattr(mw, name) for name in mw.__all__)
        if isinstance(x, type) and dataclasses.is_dataclass(x)
    ),
    mw.engine.Outcome,
    mw.Stop,
    mw.Profile,
    mw.Watchdog,
]


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda x: x.__name__)
def test_help_explains_each_field(description):
    entries = set(re.findall(r"^ *(\w+): ", inspect.getdoc(description), re.MULTILINE))
    assert {field.name for field in dataclasses.fields(description)} <= entries


def test_help_of_an_experiment_shows_the_text_below_a_field():
    shown = pydoc.render_doc(mw.Experiment, renderer=pydoc.plaintext)
    assert "max_steps: The number of updates of the whole run, including those before a restart." in shown
    assert "save: The times of checkpoints, and which are kept." in shown


def test_a_text_over_several_lines_stays_together():
    assert (
        "  examples: The examples, of the kinds that `Input.examples` lists.\n"
        "  when: The steps after which to evaluate. A number means each time after so many steps. None means "
        "every 500\n"
        "    steps, and in `Trainer.fit` the end of each epoch. A function may take the step, or the step "
        "and the\n"
    ) in mw.Evaluation.__doc__


def test_a_class_without_a_source_keeps_its_docstring():
    names = {"__name__": "meshwright.processes._when", "dataclass": dataclasses.dataclass}
    exec('@dataclass\nclass Made:\n    """A value."""\n    x: int\n    """A number."""\n', names)
    assert documented(names["Made"]).__doc__ == "A value."
