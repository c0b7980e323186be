"""Random histories of runs that save into one directory: processes die or stand still, the power fails.

Each run is the real `Checkpoints` on a simulated disk. In every step its state is a number that no other run
has, so that it shows which run's save a checkpoint is, and whether all parts of it are of one save.
"""

import random
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._directory import saved_steps, set_aside_names, temporaries
from meshwright.checkpoints._formats._inspect import pin, unpin, verify
from meshwright.errors import CheckpointError, MeshwrightError, PeersError, UsageError
from simulated.disk import Disk
from simulated.system import ROOT, System, mounted
from simulated.threads import living_in
from simulated.world import Process, World

DIRECTORY = ROOT / "digits" / "checkpoints"
FAULTS = ["kill_one", "kill_first", "kill_all", "fail_power"]
_LEAVES = ("a", "b", "c")


@dataclass
class History:
    """All that happens, and what programs were told."""

    drawn: random.Random
    keep: int
    told: dict = field(default_factory=dict)
    """The state of each step that a process was told is saved."""
    pinned: set = field(default_factory=set)
    outcomes: dict = field(default_factory=dict)
    """What the processes of a run were told of a step."""
    faults: list = field(default_factory=list)
    """The numbers of operations before which something dies, in ascending order, and what."""
    runs: list = field(default_factory=list)

    def __post_init__(self):
        self.disk, self.world = Disk(), World(self.drawn)
        self.system = System(self.disk, owner=lambda: self.world.current and self.world.current.process)
        self.disk.before = lambda operation, path: self.world.step()
        self.world.on_step, self.world.on_death = self._fault, self.system.end

    # Faults.

    def _fault(self):
        while self.faults and self.faults[0][0] <= self.world.num_steps:
            kind = self.faults.pop(0)[1]
            alive = [process for processes in self.runs for process in processes if process.is_alive]
            if alive:
                getattr(self, f"_{kind}")(alive)

    def _kill_one(self, alive):
        self.world.kill(self.drawn.choice(alive))

    def _kill_first(self, alive):
        """Kill process 0 of a run, while the others stand still."""
        first, *others = self.drawn.choice(alive).group
        for process in others:
            process.stands_until = self.world.num_steps + self.drawn.randrange(400)
        self.world.kill(first)

    def _kill_all(self, alive):
        for process in alive:
            self.world.kill(process)

    def _fail_power(self, alive):
        self._kill_all(alive)
        self.disk.lose_power(self.drawn)

    # Programs.

    def begin(self, count, steps):
        """Start the processes of a run, which goes on from the newest checkpoint and saves so many steps."""
        run, group = len(self.runs) + 1, []
        self.runs.append(group)
        group += [Process(run, number, count, group) for number in range(count)]
        for process in group:
            self.world.spawn(process, lambda process=process: self._live(process, steps))
        return group

    def _live(self, process, steps):
        try:
            self._train(process, steps)
            process.has_ended_well = True
        except PeersError:
            pass
        except UsageError as error:
            if "already in use" not in str(error):  # by another run
                raise
        self.world.kill(process)  # with the threads that it has left

    def _train(self, process, steps):
        with Checkpoints(DIRECTORY, keep=self.keep) as checkpoints:
            found = checkpoints.resume(state_of(0), None, otherwise=lambda: None)
            assert not checkpoints.passed_over, checkpoints.passed_over
            first = 0
            if found is not None:
                self._check_state(checkpoints.resumed, found)
                first = checkpoints.resumed + 1
            for step in range(first, first + steps):
                state = state_of(step + 1000 * process.run)
                checkpoints.save(step, state)
                self._wait(checkpoints, process, step)

    def _wait(self, checkpoints, process, step):
        outcomes = self.outcomes.setdefault((process.run, step), set())
        try:
            checkpoints.wait()
        except PeersError:
            raise
        except MeshwrightError as error:
            outcomes.add("failed")
            assert outcomes == {"failed"}, f"step {step} is told as saved and as failed"
            raise AssertionError(f"step {step} is not saved, though nothing failed") from error
        outcomes.add("saved")
        assert outcomes == {"saved"}, f"step {step} is told as saved and as failed"
        assert self.told.setdefault(step, process.run) == process.run, f"two states are told as step {step}"

    def _check_state(self, step, state):
        run = run_of(step, state)
        assert self.told.get(step, run) == run, f"step {step} has another state than was told"

    def pin_some(self, process):
        """Be a program that pins and unpins checkpoints."""
        for _ in range(self.drawn.randrange(16)):
            then = self.world.num_steps + self.drawn.randrange(40)
            self.world.wait(lambda then=then: self.world.num_steps >= then, 1)
            steps = list(saved_steps(DIRECTORY)) if DIRECTORY.is_dir() else []
            if not steps:
                continue
            step = self.drawn.choice(steps)
            path = DIRECTORY / f"step_{step:08d}"
            if step in self.pinned and self.drawn.random() < 0.5:
                self.pinned.discard(step)
                unpin(path)
            else:
                with suppress(CheckpointError):  # it was removed in this moment
                    pin(path)
                    self.pinned.add(step)
        self.world.kill(process)

    # What must hold.

    def check(self):
        """Check the directory, while no run has it open."""
        if not self.told and not DIRECTORY.is_dir():
            return
        steps = saved_steps(DIRECTORY)
        assert max(steps, default=-1) >= max(self.told, default=-1), "what was told as saved is gone"
        checkpoints = Checkpoints(DIRECTORY)
        for step in steps:
            assert not verify(DIRECTORY / f"step_{step:08d}").damage, f"step {step} is damaged"
            self._check_state(step, checkpoints.restore(step, state_of(0), otherwise=lambda: None))

    def check_after(self, run):
        """Check the directory after a run that nothing disturbed, which has cleaned up after the others."""
        self.check()
        steps = saved_steps(DIRECTORY)
        assert steps, "a run that nothing disturbs does not save"
        assert self.told.get(max(steps)) == run, "a run that nothing disturbs does not save"
        assert self.pinned <= set(steps), f"pinned checkpoints are gone: {self.pinned - set(steps)}"
        assert not temporaries(DIRECTORY), "remains of killed runs stay"
        assert not set_aside_names(DIRECTORY), "a checkpoint was set aside"


def run_of(step, state):
    """Return the run that has saved a state, all of it, in this step."""
    numbers = {int(number) for leaf in state.values() for number in leaf}
    assert len(numbers) == 1, f"step {step} is of several saves: {numbers}"
    run, of = divmod(numbers.pop(), 1000)
    assert of == step, f"step {step} has the state of step {of}"
    return run


def state_of(number):
    return {name: np.full(2, number, np.int64) for name in _LEAVES}


def play(seed):
    """Play one random history and check it."""
    drawn = random.Random(seed)
    history = History(drawn, keep=drawn.choice([1, 1, 2]))
    reach = drawn.choice([100, 250, 500])
    kinds = drawn.choices(FAULTS, [2, 2, 1, 3], k=drawn.randrange(5))
    history.faults = sorted((drawn.randrange(reach), kind) for kind in kinds)
    operator, program = Process(0), Process(0)
    program.group = [program]

    def operate():
        if drawn.random() < 0.5:
            history.runs.append([program])
            world.spawn(program, lambda: history.pin_some(program))
        for _ in range(drawn.choice([1, 1, 2, 3])):
            processes = history.begin(drawn.choice([1, 2, 2, 3]), drawn.choice([1, 2, 3]))
            lead_only = drawn.random() < 0.5  # the next run starts while processes of this one may live
            awaited = processes[:1] if lead_only else processes
            if drawn.random() < 0.9:
                world.wait(lambda awaited=awaited: not any(process.is_alive for process in awaited))
        world.wait(lambda: not any(process.is_alive for run in history.runs for process in run))
        history.faults = []
        history.check()
        last = history.begin(drawn.choice([1, 2]), 1)
        world.wait(lambda: not any(process.is_alive for process in last))
        history.check_after(last[0].run)
        world.kill(operator)

    world = history.world
    world.spawn(operator, operate)
    with (
        mounted(history.system),
        living_in(world),
        mock.patch.object(secrets, "token_hex", lambda count: drawn.randbytes(count).hex()),
    ):
        world.play()
    return history
