"""Notebooks in a real kernel: those of the docs run, progress is one line, and to interrupt is safe."""

import os
import signal
import threading
from pathlib import Path

import pytest

from eventually import eventually
from meshwright.observe._jsonl import read_jsonl

pytestmark = pytest.mark.notebooks
DOCS = Path(__file__).parents[2] / "docs/notebooks"
TRAINING = """
import os
from pathlib import Path
import jax.numpy as jnp, numpy as np, optax
import meshwright as mw

deployer = mw.Deployer(seed=0, workdir="run", verbose=False)
loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
trainer = mw.Trainer(deployer, params={"w": np.ones(4, np.float32)}, loss=loss, optimizer=optax.sgd(1e-9))
Path("pid").write_text(str(os.getpid()))
"""
FIT = "trainer.fit({'x': np.ones((64, 4), np.float32)}, batch_size=8, max_steps=STEPS, epochs=None)"


def client(notebook, folder):
    from nbclient import NotebookClient  # from requirements/notebooks.txt

    return NotebookClient(
        notebook, timeout=600, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("name", ["first-steps", "experiment"])
def test_a_notebook_of_the_docs_runs_and_shows_one_line_for_each_training(name, tmp_path):
    import nbformat

    notebook = nbformat.read(DOCS / f"{name}.ipynb", 4)
    client(notebook, tmp_path).execute()
    found = outputs(notebook)
    assert not [output for output in found if output.output_type == "error"]
    trainings = sum(".fit(" in cell.source or "mw.run(" in cell.source for cell in notebook.cells[1:])
    lines = [each for each in found if each.output_type == "display_data"]
    assert len(lines) == trainings
    assert all("loss=" in each.data["text/plain"] for each in lines)
    assert found[-1].data["text/html"].startswith("<iframe srcdoc=")


def test_an_interrupt_leaves_a_saved_run_and_a_sentence(tmp_path):
    from nbformat import v4

    sources = [TRAINING, FIT.replace("STEPS", "10**9"), "trainer.step"]
    cells = [v4.new_code_cell(source) for source in sources]
    notebook = v4.new_notebook(cells=cells)
    running = client(notebook, tmp_path)

    def interrupt():
        reports = tmp_path / "run/metrics.jsonl"
        eventually(lambda: reports.is_file() and any("loss" in each for each in read_jsonl(reports)))
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    running.execute()
    (error,) = [output for output in outputs(notebook) if output.output_type == "error"]
    assert error.ename == "Interrupted"
    assert len("\n".join(error.traceback).splitlines()) <= 2
    steps = int(notebook.cells[2].outputs[0].data["text/plain"])
    assert steps > 0
    assert (tmp_path / f"run/checkpoints/step_{steps:08d}").is_dir()
