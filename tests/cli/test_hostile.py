"""Files of strangers, given to the commands that look at them."""

import errno
import json
import struct

import numpy as np
import pytest

from meshwright.cli import main
from meshwright.cli._settings import read_settings
from meshwright.errors import OverrideError
from report.runs import write_run

ESCAPE = "\x1b]0;owned\x07\x1b[2J\n  forged"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\n  forged"


def called(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out + captured.err


def test_names_of_arrays_are_shown_and_do_not_command_the_terminal(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", **{ESCAPE: np.zeros(3)})
    code, said = called(capsys, "inspect", tmp_path / "x.npz")
    assert (code, SHOWN in said, "\x1b" in said, "\n  forged" in said) == (0, True, False, False)
    code, said = called(capsys, "diff", tmp_path / "x.npz", tmp_path / "x.npz", "--json")
    assert (code, "\x1b" in said) == (0, False)


def test_names_of_metrics_and_errors_are_shown_so_too(tmp_path, capsys):
    run = write_run(tmp_path / "run", scores=[(10, {f"test/{ESCAPE}": 0.5})])
    (run / "outcome.json").write_text(json.dumps({"ended": "failed", "message": ESCAPE}))
    for words in (
        ["inspect", run],
        ["report", run],
        ["runs", tmp_path],
        ["report", run, run, "--to", run / "x"],
    ):
        code, said = called(capsys, *words)
        assert (code, "\x1b" in said, "\x07" in said) == (0, False, False)
    assert SHOWN in called(capsys, "inspect", run)[1]
    (run / "metrics.jsonl").write_bytes(f'{{"step": 1}}\n{ESCAPE}\n'.encode())
    code, said = called(capsys, "inspect", run)
    assert (code, "\x1b" in said) == (3, False)


def test_one_bad_run_hides_no_other(tmp_path, capsys):
    write_run(tmp_path / "good")
    for name, file, content in (
        ("far", "metrics.jsonl", b'{"step": 1e400}\n'),
        ("deep", "metrics.jsonl", b"[" * 200_000 + b"\n"),
        ("environment", "environment.json", b"[" * 200_000),
        ("text", "experiment.txt", b"\xff"),
        ("manifest", "checkpoints/step_00000020/manifest.json", b"[" * 200_000),
    ):
        (write_run(tmp_path / name) / file).write_bytes(content)
    code, said = called(capsys, "runs", tmp_path)
    assert (code, said.count("10")) == (0, said.count("10"))
    assert f"{tmp_path}/good" in said
    for name in ("far", "deep", "environment", "text"):
        assert f"{tmp_path}/{name}  " in said.replace("damaged", "")
    assert called(capsys, "inspect", tmp_path / "text")[0] == 0
    assert called(capsys, "verify", tmp_path / "text")[0] == 0


def test_a_manifest_that_cannot_be_ends_no_command_with_a_traceback(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    manifest = run / "checkpoints/step_00000020/manifest.json"
    manifest.write_bytes(b"{" * 100_000)
    for command in (["inspect"], ["verify"], ["convert", tmp_path / "to"], ["diff", run]):
        code, said = called(capsys, command[0], run, *command[1:])
        assert (code, "manifest.json is damaged" in said) == (3, True), said


def safetensors(path, header):
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_headers_that_no_program_writes_are_damage(tmp_path, capsys):
    entry = '{"x": {"dtype": "F32", "shape": %s, "data_offsets": [0, 0]}}'
    headers = (b'{"x": ' + b"[" * 100_000, (entry % [0, 2**62]).encode(), (entry % ([0] * 100)).encode())
    for header in headers:
        file = safetensors(tmp_path / "x.safetensors", header)
        code, said = called(capsys, "inspect", file)
        assert (code, "is damaged" in said or "has a damaged header" in said) == (3, True)


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "x: " + "[" * 100_000])
@pytest.mark.daily(1)
def test_settings_that_are_nested_without_end_are_told(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(OverrideError, match="nested too deeply, or contains itself"):
        read_settings(tmp_path / "s.yaml")


def test_a_clock_that_was_set_back_makes_no_negative_time(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, time in zip(lines, (1000, 1010, 100, 110, 120), strict=True):
        line["time"] = time
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "40 of 40 steps in 0:00:30" in called(capsys, "report", run)[1]


def test_a_file_that_the_machine_does_not_give_is_one_sentence(tmp_path, capsys, monkeypatch):
    def fail(options, *, as_json):
        raise OSError(errno.EIO, "Input/output error", f"{tmp_path}/run/metrics.jsonl")

    monkeypatch.setattr("meshwright.cli._answer", fail)
    assert called(capsys, "report", tmp_path) == (
        1,
        f"error: {tmp_path}/run/metrics.jsonl: Input/output error.\n",
    )
