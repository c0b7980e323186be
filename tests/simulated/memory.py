"""Random histories of runs with checkpoints in memory, on hosts that die, lose their memory and come back.

Each run is the real `Checkpoints` with `InMemory`, on the hosts that are drawn for it. All hosts see one
disk, and each has a memory of its own at the same path, which is empty after the host has died.
"""

import random
import secrets
from functools import partial
from types import SimpleNamespace
from unittest import mock

import meshwright as mw
from meshwright.checkpoints import _saving
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._directory import complete_steps
from meshwright.checkpoints._host_memory import _checkpoints as _tier
from meshwright.checkpoints._host_memory._budget import InMemory
from meshwright.errors import MeshwrightError
from meshwright.processes._when import Tick, at
from simulated.disk import File, Folder
from simulated.saving import DIRECTORY, History, run_of, state_of
from simulated.system import ROOT, mounted
from simulated.threads import living_in
from simulated.world import Process

NUM_HOSTS = 3
FAULTS = ["kill_one", "kill_first", "kill_all", "fail_power", "lose_a_host"]
_MEMORY = "memory"
_LAST_STEPS = 2


class InMemoryHistory(History):
    """All that happens, and the steps that runs have said are complete in memory."""

    def __init__(self, drawn):
        super().__init__(drawn, keep=1)
        self.budget_nbytes = drawn.choice([2, 3]) * 3500  # a checkpoint takes a little less
        self.on_disk = at(*drawn.sample(range(12), drawn.choice([0, 1, 4])))
        self.in_memory = {}
        """By host, the newest step that a run said is complete there, and the run."""
        self.saved = 0
        """The newest step that a run said is on disk."""
        self.resumed = {}
        """By run, the step that it continued from, and the run that had saved it."""
        self.going_back, self.forgotten = set(), 0
        """The runs that go back, and the last one that has forgotten all that was in memory."""
        self.system.where = self._where
        self.disk.root.change({_MEMORY: Folder()})
        for host in range(NUM_HOSTS):
            self._clear(host)

    def _where(self, parts):
        """Return the place of a path for the process that has the turn: each host has its own memory."""
        if parts[:1] != (_MEMORY,):
            return parts
        return (_MEMORY, str(self.world.current.process.host), *parts[1:])

    def _clear(self, host):
        self.in_memory.pop(host, None)
        self._all_memory().change({str(host): Folder()})

    def _all_memory(self):
        return self.disk.root.entries[_MEMORY]

    def _fail_power(self, alive):
        self._kill_all(alive)
        memory = self.disk.root.entries.pop(_MEMORY)
        self.disk.lose_power(self.drawn)
        self.disk.root.entries[_MEMORY] = memory
        for host in range(NUM_HOSTS):
            self._clear(host)

    def _lose_a_host(self, alive):
        host = self.drawn.choice(alive).host
        for process in alive:
            if process.host == host:
                self.world.kill(process)
        self._clear(host)

    def begin_on(self, hosts, steps):
        """Start a run with a process on each of these hosts, which may be named more than once."""
        group = self.begin(len(hosts), steps)
        for process, host in zip(group, hosts, strict=True):
            process.host = host
        if self.drawn.random() < 0.2:
            self.going_back.add(group[0].run)
        return group

    def _live(self, process, steps):
        try:
            super()._live(process, steps)
        except MeshwrightError as error:
            if "still ending" not in str(error):
                raise
            self.world.kill(process)

    def _train(self, process, steps):
        memory = InMemory(every=1, budget_nbytes=self.budget_nbytes, directory=str(ROOT / _MEMORY))
        with Checkpoints(DIRECTORY, keep=self.keep, memory=memory) as checkpoints:
            expected = self._expected(process)
            checkpoints.host_memory.on_skip = _must_be_slow
            found = checkpoints.resume(state_of(0), None, otherwise=lambda: None)
            self._check_resumed(process, checkpoints, found, expected)
            last = steps + (checkpoints.resumed or 0)
            if process.run in self.going_back:
                self.in_memory.clear()
                checkpoints.host_memory.invalidate()
                self.forgotten = process.run
            save = checkpoints.saver(self.on_disk)
            for step in range(last - steps + 1, last + 1):
                save(Tick(step, last=step == last), state_of(step + 1000 * process.run), None, {})
                assert self._held(process.host) <= self.budget_nbytes, "more in memory than its budget"
                if self.drawn.random() < 0.7:
                    self.world.wait(lambda: False, 0.01)

    def _expected(self, process):
        """Return the step from which a run must continue at least."""
        here = {self.in_memory.get(each.host) for each in process.group}
        if len(here) == 1 and None not in here:
            return max(self.saved, here.pop()[0])
        for each in process.group:
            self.in_memory.pop(each.host, None)  # what is newer than what all have is removed
        return self.saved

    def _check_resumed(self, process, checkpoints, found, expected):
        resumed = checkpoints.resumed or 0
        assert resumed >= expected, f"continues from step {resumed}, though step {expected} was complete"
        assert not any("damaged" in said or "cut off" in said for said in checkpoints.passed_over)
        run = None
        if found is not None:
            run = run_of(resumed, found)
            assert not checkpoints.is_from_memory or run >= self.forgotten, "memory from before it went back"
        mine = (resumed, run)
        assert self.resumed.setdefault(process.run, mine) == mine, "processes continue from different states"

    def _held(self, host):
        return _nbytes("", self._all_memory().entries[str(host)])

    def hear(self, step, *, on_disk):
        """Note what a run tells the launcher."""
        process = self.world.current.process
        if on_disk:
            self.saved = max(self.saved, step)
        elif process.number == 0:
            self.in_memory |= {each.host: (step, process.run) for each in process.group}

    def check_after(self, group):
        """Check what a run leaves that nothing disturbed: all on disk, and nothing in memory."""
        assert max(complete_steps(DIRECTORY)) == self.resumed[group[0].run][0] + _LAST_STEPS
        for process in group:
            assert not self._all_memory().entries[str(process.host)].entries, (
                "a run that is done keeps memory"
            )


def _nbytes(name, node):
    """Return the size of the data files of checkpoints."""
    if isinstance(node, File):
        return len(node.content) * name.endswith(".zip")
    return sum(_nbytes(*each) for each in node.entries.items())


def _must_be_slow(said):
    assert "still being written" in said, said


def _telling(history, on_disk):
    """Return the module `process`, with a launcher that listens."""
    hear = partial(history.hear, on_disk=on_disk)
    internal = mw.processes._internal
    names = {name: getattr(internal, name) for name in dir(internal) if not name.startswith("_")}
    return SimpleNamespace(**{**names, "report_progress": hear})


def play(seed):
    """Play one random history and check it."""
    drawn = random.Random(seed)
    history = InMemoryHistory(drawn)
    kinds = drawn.choices(FAULTS, [3, 2, 3, 1, 2], k=drawn.randrange(1, 5))
    reach = drawn.choice([200, 500, 1000])
    history.faults = sorted((drawn.randrange(reach), kind) for kind in kinds)
    operator, world = Process(0), history.world

    def hosts():
        return sorted(drawn.choices(range(NUM_HOSTS), k=drawn.choice([1, 1, 2, 2, 3])))

    def await_end(group):
        world.wait(lambda: not any(each.is_alive for each in group))

    def operate():
        usual = hosts()
        for _ in range(drawn.choice([1, 3, 4, 5])):
            group = history.begin_on(usual if drawn.random() < 0.5 else hosts(), drawn.choice([1, 3, 6]))
            await_end(group[:1] if drawn.random() < 0.5 else group)  # the others may live on
        await_end([each for run in history.runs for each in run])
        history.faults = []
        last = history.begin_on(usual, _LAST_STEPS)
        await_end(last)
        history.check_after(last)
        world.kill(operator)

    world.spawn(operator, operate)
    with (
        mounted(history.system),
        living_in(world),
        mock.patch.object(_tier, "processes", _telling(history, on_disk=False)),
        mock.patch.object(_saving, "processes", _telling(history, on_disk=True)),
        mock.patch.object(secrets, "token_hex", lambda count: drawn.randbytes(count).hex()),
    ):
        world.play()
    return history
