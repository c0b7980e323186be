"""Nothing is lost and nothing half-done is offered, whatever happens in the middle of a save.

`make soak` plays the same with `KILLS=5000`.
"""

import os

import pytest

KILLS = int(os.environ.get("KILLS", "100"))


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def test_a_run_may_be_killed_at_any_moment(play, directory):
    answer = play("killed_at_random", directory, kills=KILLS)
    assert answer["saved"] > KILLS / 50
    assert answer["in_a_save"] > KILLS / 10


@pytest.mark.parametrize("fault", ["kill", "fail"])
def test_a_save_may_end_before_each_of_its_file_operations(play, directory, fault):
    assert play("at_each_file_operation", directory, fault=fault)["operations"] > 10


def test_a_store_that_fails_at_random_costs_no_checkpoint(play, directory):
    assert play("failing_at_random", directory, saves=KILLS // 5)["failures"] > KILLS / 20


def test_a_full_disk_costs_no_checkpoint(play, directory):
    answer = play("disk_full", directory, times=KILLS // 5)
    assert all("No space left" in said or "File too large" in said for said in answer["said"]), answer


def test_a_directory_that_turns_read_only_costs_no_checkpoint(play, directory):
    assert "Read-only file system" in play("read_only", directory)["said"]


def test_one_process_of_two_or_both_may_be_killed_at_any_moment(play, directory):
    answer = play("killed_of_two", directory, kills=KILLS // 4)
    assert answer["in_a_save"] > KILLS / 100


def test_damage_that_one_process_finds_makes_all_fall_back(play, directory):
    for resumed, passed_over, is_step_1 in play("damage_found_by_one", directory):
        assert (resumed, is_step_1) == (1, True)
        assert "step 2 is damaged; continuing from step 1 instead. process 1: cannot read w" in passed_over[0]
