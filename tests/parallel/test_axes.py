"""The table of axes is all that there is to know of an axis, but for the code of its own mechanism."""

import ast
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.errors import AxisError
from meshwright.parallel._axes import AXES, Axis, Use
from meshwright.plan import _internal as plan
from meshwright.plan._axes import alone, longer, mesh_of

SOURCE = Path(mw.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/how-to/which-axes.md"


@pytest.fixture
def graph(monkeypatch):
    """A new axis: a row, with no other change."""
    row = Axis("graph", "edges", Use.BESIDES, call="mine.edges", longest=4)
    monkeypatch.setitem(AXES, "graph", row)
    return row


def test_a_new_axis_splits_batches_and_arrays_as_its_row_says(graph):
    layout = mw.Layout(mw.make_mesh("fsdp=4,graph=2"), (mw.parallel.match("w", "graph", "fsdp"),))
    assert layout.batch_sharding.spec == jax.P(("fsdp", "graph"))
    assert layout.spec("w", jnp.ones((8, 8))) == jax.P("graph", "fsdp")
    without = mw.Layout(mw.make_mesh("fsdp=8"), layout.rules)
    assert without.spec("w", jnp.ones((8, 8))) == jax.P(None, "fsdp")


def test_a_new_axis_that_a_program_does_not_use_is_refused_with_its_call(graph):
    layout, tx = mw.Layout(mw.make_mesh("fsdp=4,graph=2")), optax.sgd(0.1)
    state = mw.training.abstract_state(lambda key: {"w": jnp.ones((8, 8))}, tx, layout)
    step = mw.make_step(lambda params, x, key: (x @ params["w"]).mean(), tx, layout)
    with pytest.raises(AxisError, match=r"splits edges in `mine\.edges`, which this program does not call"):
        step.compile(state, np.ones((8, 8), np.float32))


def test_a_search_tries_a_new_axis(graph):
    hardware = plan.hardware_named("h100:8")
    assert [{"graph": 2}, {"graph": 4}] in list(alone(hardware))
    assert dict(longer({"graph": 2}, hardware))["graph"] == {"graph": 4}
    assert mesh_of({"graph": 2}, hardware) == "fsdp=4,graph=2"


def test_the_help_of_commands_that_take_settings_describes_each_axis(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert all(f"{name:9} splits {axis.splits}" in shown for name, axis in AXES.items())


def test_the_name_of_an_axis_is_written_in_few_files():
    files = {path: ast.walk(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
    written = {path: {getattr(node, "value", None) for node in nodes} for path, nodes in files.items()}
    # The word `data` means much else.
    for name in AXES.keys() - {"data"}:
        assert len([path for path, values in written.items() if name in values]) <= 5


def test_the_page_about_axes_has_the_rows_of_the_table():
    text = PAGE.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert rows == {name: axis.splits for name, axis in AXES.items()}
    assert all(f"`{axis.call}`" in text for axis in AXES.values())
