"""Faults put into the code, each of which a quick test must find: the suite has not lost its power."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/meshwright"


class Fault(NamedTuple):
    """A change of the code. The text is in the file once."""

    file: str
    text: str
    with_fault: str
    test: str
    """The test that finds it, in `tests`."""


FAULTS = {
    "what a killed save left is not removed": Fault(
        "checkpoints/_directory.py",
        "for path in temporaries(directory):\n            _remove",
        "for path in []:\n            _remove",
        "checkpoints/test_checkpoints.py::test_what_killed_runs_left_is_removed_when_the_next_run_opens",
    ),
    "chunks may lie behind the end of their file": Fault(
        "checkpoints/_format/_manifest.py",
        'not 0 <= offset <= files[file]["bytes"] - size',
        "not 0 <= offset",
        "checkpoints/test_crafted.py::test_a_manifest_that_cannot_be_is_damage_in_every_way_to_it",
    ),
    "the newest checkpoint counts as a multiple only": Fault(
        "checkpoints/_retention.py",
        "if step == newest or step not in forced",
        "if step not in forced",
        "checkpoints/test_retention.py::test_always_does_not_count_what_it_keeps",
    ),
    "parts of an array are cut out at the wrong rows": Fault(
        "checkpoints/_format/_read.py",
        "joint[first - rows[0][0] : last - rows[0][0]]",
        "joint[first:last]",
        "checkpoints/test_read.py::test_parts_that_begin_in_the_middle_are_those_of_the_whole",
    ),
    "fillers of the last batch count": Fault(
        "data/_padded.py",
        "to_global((rows < len(ids)).astype(np.float32))",
        "to_global((rows >= 0).astype(np.float32))",
        "engine/evaluation/test_evaluator.py::test_every_example_counts_once_and_padding_never",
    ),
    "a run that continues reads its data from the beginning": Fault(
        "data/_batches.py",
        "Position(int(epoch), int(samples), inner)",
        "Position(int(epoch), 0, inner)",
        "data/test_batches.py::test_after_any_crashes_and_resizes_every_sample_is_read_exactly_once_in_order",
    ),
    "a launch ends with a signal's number": Fault(
        "launch/_outcome.py",
        "code if code > 0 else 128 - code",
        "code if code > 0 else -code",
        "launch/test_local.py::test_when_one_fails_all_end_with_its_code",
    ),
    "a stopped process is said to stand": Fault(
        "processes/_heartbeat.py",
        'STOPPED if state_of(entry.pid) in ("T", "t") else None',
        'STOPPED if state_of(entry.pid) == "t" else None',
        "processes/heartbeat/test_board.py::test_linux_tells_of_a_process_that_was_stopped",
    ),
    "a step in memory counts that a host lacks": Fault(
        "checkpoints/_host_memory/_host_directory.py",
        "[steps.get(str(step)) for steps in by_process]",
        "[steps[str(step)] for steps in by_process if str(step) in steps]",
        "checkpoints/test_memory.py::test_complete_is_what_every_process_has_of_one_start",
    ),
    "an object that is too long is taken for whole": Fault(
        "base/_storage/_object_file.py",
        "if nbytes != self.nbytes:",
        "if nbytes < self.nbytes:",
        "checkpoints/test_store_damage.py::test_damage_is_always_found_and_named",
    ),
    "the files of a foreign checkpoint in a store have other names": Fault(
        "checkpoints/_formats/readers/_seqax.py",
        'key.removeprefix(directory.key).lstrip("/")',
        "key.removeprefix(directory.key)",
        "checkpoints/formats/readers/test_laws.py::test_a_store_is_read_as_a_directory_is",
    ),
    "heads are cut in two": Fault(
        "parallel/_shapes.py",
        "part // head_size if part % head_size == 0 else 1 for part in parts",
        "part for part in parts",
        "parallel/test_known_models.py::test_shapes_and_names_tell_the_specs_of_a_known_model",
    ),
    "a ring attends to later positions": Fault(
        "nn/_ring.py",
        "jnp.where(source < self.device, 0, 1)",
        "jnp.where(source < self.device, 1, 0)",
        "nn/test_ring.py::test_a_ring_computes_what_one_device_does[causal-data=2,sequence=4]",
    ),
    "what other devices' experts add is not sent home": Fault(
        "nn/_experts.py",
        "return own + _sent(total, ways)",
        "return own + total",
        "nn/test_moe.py::test_tokens_are_sent_to_their_experts[data=4,expert=2-ppermute]",
    ),
    "the second group of microbatches enters the stages late": Fault(
        "training/_pipeline/_one_forward_one_backward.py",
        "jnp.where(t == p - 1, x, y), second, carry.queue",
        "jnp.where(t == p, x, y), second, carry.queue",
        "training/test_one_forward_one_backward.py::test_updates_and_metrics_are_those_of_one_device[pipeline=2-3]",
    ),
    "a NaN is traced on to the infinity that it is made of": Fault(
        "debug/_origin.py",
        "if chosen is None or (np.isnan(value) and not np.isnan(chosen.value)):",
        "if chosen is None:",
        "program/test_origin.py::test_the_infinity_that_became_nan_is_told",
    ),
    "data of a continued run are compared with those of a fresh one": Fault(
        "debug/_findings.py",
        "_first_batch(a, killed)",
        "_first_batch(a, again)",
        "debug/test_verify_resume.py::test_each_experiment_tells_one_cause",
    ),
    "the beginning of a text that ends an answer is sent": Fault(
        "lm/_server/_answers.py",
        "held = 0 if is_last else max(",
        "held = 0 if self._unsent else max(",
        "lm/server/test_answers.py::test_a_text_is_cut_before_its_first_end_however_it_comes",
    ),
    "memory of a plan is never let go": Fault(
        "plan/_estimate/_liveness.py",
        "append((use, -nbytes))",
        "append((use, 0))",
        "plan/test_traced_memory.py::test_a_gathered_weight_is_let_go_after_its_last_product",
    ),
    "the ledger loses the work before the first save": Fault(
        "report/_ledger.py",
        "self.marks[max(earlier)] if earlier",
        "self.marks[min(earlier)] if earlier",
        "report/test_ledger.py::test_what_was_done_after_the_save_that_a_run_continues_from_is_lost",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_text_that_is_changed_is_in_its_file_once_and_the_test_is_there(fault):
    assert (PACKAGE / fault.file).read_text().count(fault.text) == 1
    file, _, name = fault.test.partition("::")
    assert f"\ndef {name.partition('[')[0]}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_the_code_is_found(fault, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "meshwright", ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "meshwright" / fault.file
    changed.write_text(changed.read_text().replace(fault.text, fault.with_fault))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-m", "not nightly", f"tests/{fault.test}"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"FAILED tests/{fault.test}" in ended.stdout
