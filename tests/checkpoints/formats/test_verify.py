import random
import shutil

import numpy as np
import pytest

from checkpoints.test_commit import Attempt
from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import verify, verify_all
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, DamagedError

NUM_FLIPS = 2000


@pytest.fixture
def of_two(tmp_path, state, over_processes):
    """Return the directory of a checkpoint by two processes."""
    attempt = Attempt(tmp_path, state, over_processes)
    attempt.write(1)
    attempt.write(0)
    attempt.commit()
    return attempt.final


def flips(directory):
    """Yield file, offset and bit of random bits over all files, each byte as likely as any other."""
    chance = random.Random(0)
    sizes = {path: path.stat().st_size for path in sorted(directory.iterdir())}
    for path in chance.choices(list(sizes), list(sizes.values()), k=NUM_FLIPS):
        yield path, chance.randrange(sizes[path]), 1 << chance.randrange(8)


def flip(path, offset, bit):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ bit]))


def in_a_chunk(directory, path, offset):
    return any(
        path.name.startswith(f"data-{file:05d}") and start <= offset < start + size
        for name in open_source(directory).arrays()
        for file, start, size, _ in chunks_of(directory, name)
    )


def test_of_2000_flipped_bits_none_goes_unnoticed(of_two):
    assert not verify(of_two).damage
    unnoticed, named = [], set()
    for path, offset, bit in flips(of_two):
        flip(path, offset, bit)
        damage = verify(of_two).damage
        flip(path, offset, bit)
        if not [each for each in damage if each.file == path.name]:
            unnoticed.append((path.name, offset, bit))
        named |= {each.file for each in damage}
    assert unnoticed == []
    assert named == {path.name for path in of_two.iterdir()}
    assert not verify(of_two).damage


def test_a_restore_raises_for_each_flipped_bit_that_it_reads_and_no_other_matters(of_two, state, same_bytes):
    for path, offset, bit in list(flips(of_two))[::10]:
        matters = path.name == "manifest.json" or in_a_chunk(of_two, path, offset)
        flip(path, offset, bit)
        if matters:
            with pytest.raises(DamagedError):
                restore(open_source(of_two), state)
        else:
            assert same_bytes(restore(open_source(of_two), state), state)
        flip(path, offset, bit)


def test_damage_names_file_array_offset_and_checksums(state, save):
    checkpoint = save(state)
    _, offset, size, crc = chunks_of(checkpoint, "params/w")[3]
    flip_a_bit(checkpoint / DATA_FILE, offset)
    [damage] = verify(checkpoint).damage
    assert (damage.file, damage.piece, damage.offset, damage.nbytes) == (DATA_FILE, "params/w", offset, size)
    assert str(damage).startswith(f"{DATA_FILE}: params/w, {size} bytes at offset {offset}: the CRC-32 is ")
    assert f"instead of {crc:08x}" in str(damage)


def test_every_array_that_a_truncated_file_has_lost_is_named(save):
    checkpoint = save({"a": np.arange(1000), "b": np.arange(1000)})
    [[_, offset, *_]] = chunks_of(checkpoint, "b")
    with (checkpoint / DATA_FILE).open("r+b") as file:
        file.truncate(offset + 1)
    whole_file, *pieces = verify(checkpoint).damage
    assert whole_file.found.startswith(f"has {offset + 1} bytes instead of ")
    assert [damage.piece for damage in pieces] == ["b", "the central directory"]
    assert pieces[0].found == "the last 7999 bytes are missing"


def test_a_missing_file_is_reported(state, save):
    checkpoint = save(state)
    (checkpoint / DATA_FILE).unlink()
    assert [str(damage) for damage in verify(checkpoint).damage] == [f"{DATA_FILE}: the file is missing"]


def test_a_manifest_of_zeros_is_damage_and_no_crash(state, save):
    checkpoint = save(state)
    (checkpoint / "manifest.json").write_bytes(bytes(1000))
    [damage] = verify(checkpoint).damage
    assert damage.file == "manifest.json"


def test_a_report_counts_what_was_checked(save):
    checkpoint = save({"a": np.arange(1000), "empty": np.zeros((0, 3))})
    report = verify(checkpoint.parent)
    sizes = [path.stat().st_size for path in checkpoint.iterdir()]
    assert (report.checkpoint, report.num_files, report.num_arrays) == (str(checkpoint), 2, 2)
    assert report.nbytes == sum(sizes)


def test_what_is_no_checkpoint_cannot_be_verified(tmp_path):
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        verify(tmp_path)


def test_verifying_changes_nothing(state, save):
    checkpoint = save(state)
    before = shutil.copytree(checkpoint, checkpoint.parent / "before")
    verify(checkpoint)
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == {
        path.name: path.read_bytes() for path in before.iterdir()
    }


@pytest.fixture
def three(tmp_path):
    """Return a directory with checkpoints of steps 1 to 3."""
    with Checkpoints(tmp_path, keep=last(3)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": step})
    return tmp_path


def test_one_of_a_directory_is_its_newest(three):
    assert verify(three).checkpoint == str(three / "step_00000003")


def test_all_of_a_directory_are_verified_the_oldest_first(three):
    (three / "step_00000002" / DATA_FILE).unlink()
    reports = list(verify_all(three))
    assert [(each.checkpoint[-1], bool(each.damage)) for each in reports] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]
    assert list(verify_all(three / "step_00000003")) == reports[2:]


def test_what_its_run_removes_meanwhile_is_left_out(three):
    reports = verify_all(three)
    assert next(reports).checkpoint.endswith("1")
    shutil.rmtree(three / "step_00000002")
    assert [report.checkpoint[-1] for report in reports] == ["3"]
