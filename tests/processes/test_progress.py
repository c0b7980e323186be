"""What a run tells its launcher."""

from meshwright.processes._progress import report_progress


def test_only_a_newer_step_is_told(tmp_path, monkeypatch):
    file = tmp_path / "progress"
    monkeypatch.setenv("MESHWRIGHT_PROGRESS", str(file))
    told = []
    for step in (5, 20, 10, 20, 21):  # the disk has finished step 10 after the memory had step 20
        report_progress(step)
        told.append(file.read_text())
    assert told == ["5\n", "20\n", "20\n", "20\n", "21\n"]
