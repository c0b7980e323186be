"""Nothing is lost and nothing half-done is offered, whatever happens in the middle of a save.

`make soak` plays the same with `KILLS=5000`, and tells how it goes.
"""

import os
import re

import pytest

KILLS = int(os.environ.get("KILLS", "25"))


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def test_a_run_may_be_killed_at_any_moment(play, directory):
    answer = play("killed_at_random", directory, kills=KILLS)
    assert answer["in_a_save"] == KILLS
    assert answer["steps"] > KILLS / 5


@pytest.mark.parametrize("fault", ["kill", pytest.param("fail", marks=pytest.mark.slow)])
def test_a_save_may_end_before_each_of_its_file_operations(play, directory, fault):
    assert play("at_each_file_operation", directory, fault=fault)["operations"] > 10


@pytest.mark.parametrize("killed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_is_pinned_during_its_removal_is_not_lost(play, directory, killed):
    assert set(play("pinned_in_a_removal", directory, killed=killed)) == {"pinned", "refused"}


def test_a_store_that_fails_at_random_costs_no_checkpoint(play, directory):
    assert play("failing_at_random", directory, saves=KILLS // 5)["failures"] > KILLS / 20


def test_a_full_disk_costs_no_checkpoint(play, directory):
    answer = play("disk_full", directory, times=KILLS // 5)
    assert set(answer["said"]) <= {"No space left on device", "File too large"}


def test_a_directory_that_turns_read_only_costs_no_checkpoint(play, directory):
    for said in play("turned_read_only", directory):
        assert re.search(r"Read-only file system|Permission denied", said)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["stay", "leave"])
def test_a_save_may_be_interrupted_before_each_of_its_lines(play, directory, then):
    assert play("interrupted_before_each_line", directory, then=then)["lines"] > 100


@pytest.mark.slow
def test_a_run_may_be_killed_at_each_file_operation_of_going_back(play, directory):
    assert play("killed_while_going_back", directory)["operations"] > 4


def test_a_forked_process_restores_as_its_parent_did(play, directory):
    assert play("restored_in_a_fork", directory) == [True, True]


def test_a_worker_that_outlives_a_killed_run_does_not_keep_its_lock(play, directory):
    play("outlived_by_a_worker", directory)


def test_one_process_of_two_or_both_may_be_killed_at_any_moment(play, directory):
    assert play("killed_of_two", directory, kills=KILLS // 10)["in_a_save"] == KILLS // 10


def test_a_process_that_lost_the_other_in_a_save_hears_of_it_and_leaves(play, directory):
    answer = play("killed_while_the_other_saves", directory)
    assert "processes [1] did not finish" in answer["heard"][1]
    assert answer["latest"] == 1


def test_damage_that_one_process_finds_makes_all_fall_back(play, directory):
    for resumed, passed_over, is_step_1 in play("damage_found_by_one", directory):
        assert (resumed, is_step_1) == (1, True)
        assert "step 2 is damaged; continuing from step 1 instead. process 1: cannot read w" in passed_over[0]
