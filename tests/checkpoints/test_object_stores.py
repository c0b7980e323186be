"""Checkpoints in object stores: over HTTP against an S3 server and a fake of Google's, on loopback."""

import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from base.storage.stores import objects
from meshwright.base import _tree as tree
from meshwright.base._storage import _settings
from meshwright.base._storage._path import ObjectPath, location
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._convert import convert
from meshwright.checkpoints._directory import probe
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._format._manifest import Manifest, manifest_text
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._inspect import contents, pin, verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._host_memory._budget import InMemory
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, MeshwrightError, UsageError
from meshwright.processes._when import Tick, at, every


def taken(leaves, arrays, process):
    """Return what a process writes, on the host."""
    chunks = Snapshot(leaves, arrays, process)
    chunks.take(wait=True)
    return chunks


def test_a_state_is_saved_and_restored_onto_another_mesh(run, state, same_bytes):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(800, state, {"note": "hello"})
    mesh = jax.make_mesh((8,), ("x",))
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, P(None, "x") if x.shape == (16, 8) else P())
        ),
        state,
    )
    source = open_source(run)
    assert same_bytes(restore(source, target), state)
    assert (source.step, source.extra, str(source)) == (800, {"note": "hello"}, f"{run}/step_00000800")
    assert same_bytes(restore(open_source(f"{run}/step_00000800"), state), state)


def killed_after_step_2(run, memory):
    """Save step 1 in a store and step 2 in memory, and end without more."""
    with Checkpoints(run, memory=memory) as checkpoints:
        save = checkpoints.saver(at(1))
        for step in (1, 2):
            save(Tick(step), {"x": np.full(3, float(step))}, None, {})
        raise InterruptedError


def test_a_run_in_a_store_continues_from_the_memory_of_its_host(run, tmp_path):
    memory = InMemory(every=2, budget_nbytes=1 << 20, directory=str(tmp_path))
    target = {"x": np.zeros(3)}
    with pytest.raises(InterruptedError):
        killed_after_step_2(run, memory)
    with Checkpoints(run, memory=memory) as checkpoints:
        state = checkpoints.resume(target, None, otherwise=pytest.fail)
        assert (checkpoints.resumed, checkpoints.is_from_memory) == (2, True)
        assert (state["x"] == 2).all()
        checkpoints.save(2, state)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_not_taken_after_a_run_in_a_store_has_gone_on_without_it(run, tmp_path):
    memory = InMemory(every=2, budget_nbytes=1 << 20, directory=str(tmp_path))
    with pytest.raises(InterruptedError):
        killed_after_step_2(run, memory)
    with Checkpoints(run):
        pass
    with Checkpoints(run, memory=memory) as checkpoints:
        checkpoints.resume({"x": np.zeros(3)}, None, otherwise=pytest.fail)
    assert checkpoints.resumed == 1


def test_a_store_that_is_opened_to_save_is_listed_once(gcs, gcs_run):
    before = gcs.requests
    probe(location(gcs_run))
    probing, start = gcs.requests - before, gcs.requests
    with Checkpoints(gcs_run):
        opening = gcs.requests - start
    assert opening == probing + 1


def test_a_checkpoint_is_its_data_files_and_a_manifest_that_names_them(run, state):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, state)
    data, manifest = objects(run)
    assert manifest == "step_00000001/manifest.json"
    content = json.loads(location(f"{run}/{manifest}").read_bytes())
    assert data == f"step_00000001/{content['files'][0]['name']}"


def test_an_object_is_an_ordinary_data_file(run, state, tmp_path):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, state)
    (tmp_path / "data.zip").write_bytes(location(f"{run}/{objects(run)[0]}").read_bytes())
    with zipfile.ZipFile(tmp_path / "data.zip") as archive:
        assert archive.testzip() is None


def test_resume_continues_and_retention_removes(run):
    with Checkpoints(run, keep=last(2)) as checkpoints:
        assert checkpoints.resume({"x": 0}, None, otherwise=lambda: "fresh") == "fresh"
        save = checkpoints.saver(every(1))
        for step in (9, 10, 100_000_000):
            save(Tick(step), {"x": step}, None, None)
    assert {key.split("/")[0] for key in objects(run)} == {"step_00000010", "step_100000000"}
    with Checkpoints(run) as checkpoints:
        assert checkpoints.resume({"x": 0}, None, otherwise=pytest.fail) == {"x": 100_000_000}


def test_of_two_runs_that_save_one_step_exactly_one_wins_and_the_other_says_so(run):
    states = [{"x": 1}, {"x": 2}]
    arrays = layouts(states[0], num_processes=1)
    attempts = [location(run) / "step_00000001" / name for name in ("aaaaaaaa", "bbbbbbbb")]
    for attempt, state in zip(attempts, states, strict=True):
        write_part(attempt, arrays, taken(state, arrays, 0), 0, 1)
    with ThreadPoolExecutor() as threads:
        ends = [
            threads.submit(commit, attempt, attempt.parent, Manifest(1, {}, {}), arrays, 1, Event())
            for attempt in attempts
        ]
    (failure,) = (str(end.exception()) for end in ends if end.exception())
    assert failure == f"another run saves in {run} and was first to save step_00000001."
    assert restore(open_source(run), {"x": 0}) == states[0 if ends[1].exception() else 1]


def test_a_run_that_was_beaten_takes_its_files_away(run, monkeypatch):
    def commit_too_late(*arguments):
        (location(run) / "step_00000001" / "manifest.json").put(manifest_text(Manifest(1, {}, {})))
        commit(*arguments)

    monkeypatch.setattr("meshwright.checkpoints._saving.commit", commit_too_late)
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, {"x": 1})
        with pytest.raises(MeshwrightError, match="was first to save step_00000001"):
            checkpoints.wait()
    assert objects(run) == ["step_00000001/manifest.json"]


def test_attempts_that_were_overtaken_are_removed_and_others_are_left_alone(run):
    old, beaten, running = "step_00000001/aaaaaaaa", "step_00000002/bbbbbbbb", "step_00000003/cccccccc"
    for attempt in (old, beaten, running):
        (location(run) / attempt / "data-00000-of-00001.zarr.zip").put(b"half")
    with Checkpoints(run) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(2, {"x": 2})
    with Checkpoints(run) as checkpoints:
        assert checkpoints.latest() == 2
    attempts = {key.rpartition("/")[0] for key in objects(run)}
    assert attempts & {old, beaten, running} == {running}
    assert restore(open_source(run), {"x": 0}) == {"x": 2}


def test_a_step_that_exists_gets_late_scores_and_no_other_state(run):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, {"x": 1})
        checkpoints.save(1, {"x": 1}, {"scores": {"loss": 0.5}})
        assert checkpoints.scores() == {"loss": 0.5}
        with pytest.raises(UsageError, match="step 1 is saved already, with other values of x"):
            checkpoints.save(1, {"x": 2})
    assert restore(open_source(run), {"x": 0}) == {"x": 1}


def test_steps_without_a_manifest_that_are_newer_are_named_and_do_not_keep_a_run_from_going_on(run, caplog):
    with Checkpoints(run, keep=5) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": step})
    (location(run) / "step_00000002/manifest.json").unlink()
    with Checkpoints(run) as checkpoints:
        assert checkpoints.resume({"x": 0}, None, otherwise=dict) == {"x": 1}
        assert "step_00000002 in" in caplog.text
        assert "have files but no manifest.json" in caplog.text
        assert "continuing from step 1 instead" in caplog.text


def test_a_step_of_which_there_is_only_an_attempt_can_be_saved(run):
    (location(run) / "step_00000001/aaaaaaaa/data-00000-of-00001.zarr.zip").put(b"half")
    with pytest.raises(CheckpointError, match="only the unfinished step_00000001"):
        open_source(run)
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, {"x": 1})
    assert restore(open_source(run), {"x": 0}) == {"x": 1}


def test_a_file_longer_than_an_object_may_be_is_cut_and_read_in_blocks(run, monkeypatch):
    for module, name, nbytes in (
        ("_object_file", "OBJECT_BYTES", 4096),
        ("_object_file", "BLOCK_BYTES", 512),
        ("_object_file", "_NUM_CACHED", 10),
    ):
        monkeypatch.setattr(f"meshwright.base._storage.{module}.{name}", nbytes)
    state = {"x": np.arange(5000), "y": np.arange(7, dtype=np.int8)}
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, state)
    assert sum("zarr.zip.000" in key for key in objects(run)) > 8
    restored = restore(open_source(run), state)
    assert all((restored[name] == state[name]).all() for name in state)


@pytest.mark.parametrize("run", ["s3", "gs"], indirect=True)
def test_a_typing_error_in_the_bucket_never_looks_like_an_empty_directory(run):
    wrong = run.replace("bucket", "bukcet")
    with pytest.raises(UsageError, match=rf"{wrong} cannot be used: cannot write {wrong}/\.probe.*HTTP 404"):
        Checkpoints(wrong).__enter__()


def test_an_endpoint_that_does_not_answer_is_told_soon_and_without_secrets(s3_run, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://name:password@127.0.0.1:1")
    with pytest.raises(
        UsageError, match=r"cannot be used: cannot write .*127.0.0.1:1 cannot be reached"
    ) as error:
        Checkpoints(s3_run).__enter__()
    assert not [secret for secret in ("very secret", "testing", "password") if secret in str(error.value)]


def test_opening_leaves_nothing_behind(run):
    with Checkpoints(run):
        pass
    assert objects(run) == []


def test_two_processes_upload_their_parts_and_the_lead_commits_them(
    run, state, same_bytes, over_processes, monkeypatch
):
    leaves = tree.named_leaves(state)
    spread = {
        name: SimpleNamespace(shape=leaf.shape, dtype=leaf.dtype, sharding=over_processes(leaf.sharding, 2))
        for name, leaf in leaves.items()
    }
    arrays, attempt = layouts(spread, num_processes=2), location(run) / "step_00000001" / "0123abcd"
    for process in (1, 0):
        write_part(attempt, arrays, taken(leaves, arrays, process), process, 2)
    assert sum("part-" in key for key in objects(run)) == 2
    commit(attempt, attempt.parent, Manifest(1, {}, {}), arrays, 2, Event())
    assert same_bytes(restore(open_source(run), state), state)
    assert len(objects(run)) == 3


TWO_PROCESSES = """
import sys
import jax, numpy as np
import meshwright as mw
from jax.sharding import NamedSharding, PartitionSpec as P

mw.parallel.start_processes()
sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), P("x"))
target = {"x": jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)}
ones = jax.make_array_from_callback((8,), sharding, lambda index: np.ones(8, np.float32)[index])
with mw.Checkpoints(sys.argv[1], keep=mw.checkpoints.last(1)) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, {"x": ones * step})
    state = checkpoints.resume(target, None, otherwise=None)
    assert (checkpoints.resumed, jax.process_count(), float(state["x"].sum())) == (2, 2, 16)
"""


@pytest.mark.slow
def test_two_processes_save_and_restore_over_http(python, s3_run):
    environ = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")
    }
    program = [*python, "-c", TWO_PROCESSES, s3_run]
    launch = [*python, "-m", "meshwright", "--fake-devices", "2", "launch", "local", "-n", "2", "--"]
    done = subprocess.run([*launch, *program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(key.rpartition("/")[2] for key in objects(s3_run)) == [
        "data-00000-of-00002.zarr.zip",
        "data-00001-of-00002.zarr.zip",
        "manifest.json",
    ]


def test_a_process_that_cannot_upload_says_so(gcs, gcs_run, monkeypatch):
    monkeypatch.setitem(_settings.PATIENCE, "max_retries", 0)
    arrays, attempt = layouts({"x": 1}, num_processes=1), location(gcs_run) / "step_00000001" / "0123abcd"
    start = gcs.requests
    monkeypatch.setattr(gcs, "fails", lambda number: "before" if number == start + 1 else None)
    with pytest.raises(MeshwrightError, match="cannot write"):
        write_part(attempt, arrays, taken({"x": 1}, arrays, 0), 0, 1)
    with pytest.raises(MeshwrightError, match="process 0: MeshwrightError: cannot write"):
        commit(attempt, attempt.parent, Manifest(1, {}, {}), arrays, 1, Event())


def test_a_commit_whose_files_were_removed_fails(run):
    arrays, attempt = layouts({"x": 1}, num_processes=1), location(run) / "step_00000001" / "0123abcd"
    write_part(attempt, arrays, taken({"x": 1}, arrays, 0), 0, 1)
    (attempt / "data-00000-of-00001.zarr.zip").unlink()
    with pytest.raises(MeshwrightError, match=r"data-00000-of-00001\.zarr\.zip in .* were removed"):
        commit(attempt, attempt.parent, Manifest(1, {}, {}), arrays, 1, Event())
    assert Checkpoints(run).latest() is None


def test_requests_that_fail_and_take_long_are_tried_again(gcs, gcs_run, monkeypatch):
    monkeypatch.setitem(_settings.PATIENCE, "first", 0.01)
    state = {"x": np.arange(10_000), "y": jnp.ones(3)}
    monkeypatch.setattr(gcs, "latency_seconds", 0.01)
    monkeypatch.setattr(gcs, "fails", lambda number: {2: "before", 3: "after"}.get(number % 5))
    with Checkpoints(gcs_run, keep=last(1)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state)
    assert (restore(open_source(gcs_run), state)["x"] == state["x"]).all()
    assert len(objects(gcs_run)) == 2


def test_a_commit_whose_answer_was_lost_is_not_taken_for_another_runs(gcs, gcs_run, monkeypatch):
    path = location(gcs_run) / "manifest.json"
    start = gcs.requests
    monkeypatch.setattr(gcs, "fails", lambda number: "after" if number == start + 2 else None)  # the write
    assert path.create(b"mine")
    assert not path.create(b"another's")
    assert path.read_bytes() == b"mine"


def test_a_store_that_fails_for_good_fails_the_save_and_leaves_no_checkpoint(gcs, gcs_run, monkeypatch):
    monkeypatch.setitem(_settings.PATIENCE, "max_retries", 1)
    with Checkpoints(gcs_run) as checkpoints:
        checkpoints.save(1, {"x": 1})
        checkpoints.wait()
        start = gcs.requests
        monkeypatch.setattr(gcs, "fails", lambda number: number > start + 3 and "before")
        checkpoints.save(2, {"x": 2})
        with pytest.raises(MeshwrightError, match=r"the save of step 2 failed:\n.*cannot (write|list|look)"):
            checkpoints.wait()
        monkeypatch.setattr(gcs, "fails", lambda number: None)
        assert checkpoints.latest() == 1
        checkpoints.save(2, {"x": 2})
    assert restore(open_source(gcs_run), {"x": 0}) == {"x": 2}


def test_a_checkpoint_is_converted_from_store_to_store(run, state, same_bytes):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, state, {"scores": {"loss": 0.5}})
    made = convert(open_source(run), f"{run}-copy", dtype={"opt_state/.*": "float64"}, only="opt_state/.*")
    assert str(made) == f"{run}-copy/step_00000001"
    wider = [x.astype(np.float64) for x in map(np.asarray, state["opt_state"])]
    assert same_bytes(restore(open_source(made), {"opt_state": wider})["opt_state"], wider)
    assert not verify(made).damage
    with pytest.raises(UsageError, match="step_00000001 exists already"):
        convert(open_source(run), f"{run}-copy")


def test_a_conversion_that_fails_leaves_nothing_in_the_store(run):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, {"params": {"w": np.float32([1, 1e6])}})
    with pytest.raises(UsageError, match=r"cannot convert params/w to float16: 1e\+06 does not fit"):
        convert(open_source(run), f"{run}-half", dtype="float16")
    assert objects(f"{run}-half") == []


def test_a_checkpoint_that_is_pinned_while_it_is_being_removed_stays(run, monkeypatch):
    unlink = ObjectPath.unlink

    def pin_just_before(path):
        if str(path).endswith("step_00000001/manifest.json"):
            pin(str(path.parent))
        unlink(path)

    monkeypatch.setattr(ObjectPath, "unlink", pin_just_before)
    with Checkpoints(run, keep=last(1)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": step})
    assert restore(open_source(f"{run}/step_00000001"), {"x": 0}) == {"x": 1}


def test_contents_tell_steps_sizes_and_pins(run):
    with Checkpoints(run) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": step})
    pin(f"{run}/step_00000001")
    first, second = contents(run).checkpoints
    assert (first.step, first.pinned, second.step, second.pinned) == (1, True, 2, False)
    assert first.nbytes == open_source(first.path).manifest.files[0].nbytes


def test_a_checkpoint_in_a_store_is_exported_like_any(run, state, tmp_path):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, state)
    assert export_safetensors(open_source(run), tmp_path)[0].exists()
    with pytest.raises(UsageError, match=r"is a URL of a store.*\n  Export to a disk"):
        export_safetensors(open_source(run), f"{run}/exported")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("az://bucket/run", "az://bucket cannot be opened: .*AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3:///run", "has no bucket: expected s3://bucket/path"),
        ("s3://bucket/../run", "leaves the directory"),
        ("https://host/run", r"cannot hold checkpoints.*\n.*save\.directory"),
        ("s3://key:secret@bucket/run", "Credentials belong in the environment"),
        (Path("s3://bucket/run"), "was a URL before it was made a Path: give it as a string"),
    ],
)
def test_what_is_no_address_is_refused(address, said):
    with pytest.raises(UsageError, match=said) as error:
        Checkpoints(address)
    assert "secret" not in str(error.value)


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'meshwright\[remote\]'"):
        Checkpoints("s3://bucket/run")


def test_a_file_address_is_a_directory(tmp_path):
    with Checkpoints(f"file://{tmp_path}/run") as checkpoints:
        checkpoints.save(1, {"x": 1})
    assert (tmp_path / "run" / "step_00000001" / "manifest.json").exists()
