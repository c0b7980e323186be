import os
import subprocess
import sys

from meshwright.observe._tensorboard import tensorboard


def test_a_report_is_one_event_with_its_step_and_tags(tmp_path, read_events):
    with tensorboard(tmp_path / "run") as write:
        write(50, {"loss": 0.5, "held_out/accuracy": 0.25})
    first, event = read_events(tmp_path / "run")
    assert first.file_version == "brain.Event:2"
    assert event.step == 50
    assert [(v.tag, v.simple_value) for v in event.summary.value] == [
        ("loss", 0.5),
        ("held_out/accuracy", 0.25),
    ]


def test_a_resumed_run_tells_tensorboard_from_where_to_forget(tmp_path, read_events):
    with tensorboard(tmp_path, resume_step=100) as write:
        write(150, {"loss": 0.5})
    _, start, event = read_events(tmp_path)
    assert (start.step, start.session_log.status) == (101, start.session_log.START)
    assert event.step == 150


def test_a_report_can_be_read_as_soon_as_it_is_written(tmp_path, read_events):
    with tensorboard(tmp_path) as write:
        write(50, {"loss": 0.5})
        assert read_events(tmp_path)[-1].step == 50


def test_texts_are_what_the_text_dashboard_reads(tmp_path, read_events):
    with tensorboard(tmp_path) as board:
        board(3, {"Notes": "a\n\nb"})
    event = read_events(tmp_path)[-1]
    [value] = event.summary.value
    assert (event.step, value.tag, value.metadata.plugin_data.plugin_name) == (3, "Notes", "text")
    assert (value.tensor.dtype, list(value.tensor.string_val)) == (7, [b"a\n\nb"])  # 7 is DT_STRING


def test_two_starts_within_a_second_write_two_files_in_order(tmp_path, read_events):
    for step in range(3):
        with tensorboard(tmp_path) as write:
            write(step, {"loss": 0.5})
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [0, 1, 2]


def test_what_float32_cannot_hold_is_infinite(tmp_path, read_events):
    with tensorboard(tmp_path) as write:
        write(1, {"loss": 1e300})
    assert read_events(tmp_path)[-1].summary.value[0].simple_value == float("inf")


ASKS_WHAT_IS_LOADED = """
import sys
from meshwright import observe as metrics
print([name for name in ("rich", "google.protobuf") if name in sys.modules])
with metrics.tensorboard(sys.argv[1]) as write:
    write(1, {"loss": 0.5})
print([name for name in ("torch", "tensorflow", "tensorboardX") if name in sys.modules])
"""


def test_neither_pytorch_nor_tensorflow_is_loaded_even_if_installed(tmp_path, monkeypatch):
    for name in ("torch", "tensorflow", "tensorboardX"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemError('{name} was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-c", ASKS_WHAT_IS_LOADED, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (result.stdout, result.stderr) == ("[]\n[]\n", "")
