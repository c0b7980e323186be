"""A simulation of the launchers of several machines: their clocks, messages, processes and deaths.

Everything follows from a seed. Time is simulated, so a history of minutes takes milliseconds.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field, replace

from meshwright.launch import _lead, _members
from meshwright.launch._lead import Leader, Phase, Requirements
from meshwright.launch._members import BEAT_SECONDS, End, Status
from meshwright.launch._outcome import Restarts

HOSTS_WAIT_SECONDS = 60
PATIENCE_SECONDS = 120
"""Time that an agent waits for a leader, as `_hosts` has it."""


@dataclass
class Machine:
    """A machine with its clock. `agent` is None while no launcher runs on it."""

    number: int
    offset: float
    rate: float
    agent: object = None
    life: int = 0
    leader: Leader | None = None
    alive: tuple | None = None
    """The generation whose processes run here, as (leader, number)."""
    silent_since: float = 0.0
    left_with: int | None = None
    cut_off_until: float = 0.0
    """Time until which no message comes from here or gets here."""
    told: int | None = None
    """The exit code of the run, if a leader has counted on telling it to this machine."""

    def clock(self, now):
        return self.offset + self.rate * now


@dataclass
class World:
    """All machines, the network between them, and what has happened."""

    drawn: object
    hosts: int
    min_hosts: int
    allowed: int
    quiet_after: float
    """Time after which no message is lost and nothing dies."""
    share_late: float
    """Share of the messages that take long."""
    now: float = 0.0
    events: list = field(default_factory=list)
    order_of_events: object = field(default_factory=itertools.count)
    started: dict = field(default_factory=dict)
    """Of each generation: the processes' numbers, by machine."""
    fates: dict = field(default_factory=dict)
    saved: int = -1
    decided: list = field(default_factory=list)

    def __post_init__(self):
        self.elsewhere_seconds = self.drawn.choice([0, 15])
        self.machines = [
            Machine(number, self.drawn.uniform(-1e4, 1e4), self.drawn.uniform(0.97, 1.03))
            for number in range(self.hosts)
        ]

    def after(self, seconds, what, *arguments):
        heapq.heappush(self.events, (self.now + seconds, next(self.order_of_events), what, arguments))

    def play(self, until):
        while self.events and self.now < until:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)

    def is_calm(self):
        return self.now >= self.quiet_after

    # People and schedulers.

    def interrupt(self, machine, number):
        """Tell the launcher of a machine to stop; the run's processes save, all together, and end."""
        if machine.agent is None:
            return
        machine.agent = replace(machine.agent, status=replace(machine.agent.status, signal=number))
        if machine.alive is not None:
            self.after(1, self.end_together, machine.alive, 75 if number == 15 else 130)

    def end_together(self, generation, code):
        run = self.started[generation]
        if sum(len(numbers) for numbers in run["numbers"].values()) < run["order"].num_processes:
            return  # processes that wait for others; each is killed by its launcher after the grace period
        for number, numbers in run["numbers"].items():
            self.end(
                self.machines[number], generation, tuple(End(one, f"host{number}", code) for one in numbers)
            )

    # The launchers.

    def boot(self, machine):
        machine.life, machine.left_with, machine.told = machine.life + 1, None, None
        name = f"{machine.number}.{machine.life}"
        mine = Status(
            name, f"host{machine.number}", "job", machine.clock(self.now), 2, f"host{machine.number}:1"
        )
        machine.agent, machine.silent_since = _members.Agent(mine), self.now
        if machine.number == 0:
            machine.leader = Leader(
                name=f"leader {name}",
                own=name,
                job="job",
                requirements=Requirements(
                    self.hosts, self.min_hosts, HOSTS_WAIT_SECONDS, self.elsewhere_seconds
                ),
                restarts=Restarts(self.allowed),
                born=machine.clock(self.now),
                since=machine.clock(self.now),
            )
            self.after(0, self.lead, machine, machine.life)
        self.after(0, self.beat, machine, machine.life)

    def die(self, machine):
        """Kill the launcher of a machine; its processes die with it."""
        if machine.agent is None:
            return
        name, machine.agent, machine.leader = machine.agent.status.agent, None, None
        self.after(self.drawn.uniform(0, 0.3), self.buried, machine, machine.alive)
        if self.drawn.random() < 0.8:
            self.after(self.drawn.uniform(0, 0.2), self.notice, name)

    def buried(self, machine, alive):
        if machine.agent is None and machine.alive == alive:
            machine.alive = None
        if machine.left_with is None:
            self.after(self.drawn.choice([0.5, 5, 40]), self.boot, machine)

    def notice(self, name):
        leader = self.machines[0].leader
        if leader:
            self.machines[0].leader = _lead.on_disconnect(leader, name)

    def beat(self, machine, life):
        """Send a status, and see to what has become due."""
        if machine.agent is None or machine.life != life:
            return
        clock = machine.clock(self.now)
        machine.agent = _members.on_time(machine.agent, clock)
        self.obey(machine)
        if machine.agent is None:
            return
        machine.agent = replace(machine.agent, status=replace(machine.agent.status, sent=clock))
        self.send(machine, self.to_leader, machine.agent.status, life)
        self.after(BEAT_SECONDS * self.drawn.uniform(0.5, 1.1), self.beat, machine, life)

    def lead(self, machine, life):
        if machine.leader is None or machine.life != life:
            return
        self.decide(machine)
        self.after(0.2, self.lead, machine, life)

    def decide(self, machine):
        before = machine.leader
        machine.leader = _lead.advance(before, machine.clock(self.now))
        if machine.leader.phase is not before.phase:
            self.decided.append((before, machine.leader))
            if machine.leader.phase is Phase.OVER and self.is_calm():
                self.count_on(machine.leader)

    def count_on(self, leader):
        """Note the exit code that all launchers must leave with that the leader hears."""
        for machine in self.machines:
            here = machine.agent and leader.views.get(machine.agent.status.agent)
            if here and not here.is_gone and self.machines[0].clock(self.now) - here.heard_at < 5:
                machine.told = leader.exit_code if not machine.agent.status.signal else None

    # The network.

    def cut_off(self, machine, seconds):
        machine.cut_off_until = max(machine.cut_off_until, min(self.now + seconds, self.quiet_after))

    def send(self, machine, deliver, message, life):
        calm = self.is_calm()
        if self.now < machine.cut_off_until:
            return
        for _ in range(1 if calm else self.drawn.choices([0, 1, 2], [15, 80, 5])[0]):
            is_late = not calm and self.drawn.random() < self.share_late
            late = self.drawn.expovariate(1 / self.drawn.choice([3, 40])) if is_late else 0
            self.after(late + self.drawn.uniform(0.001, 0.1), deliver, message, life)

    def to_leader(self, status, life):
        machine = self.machines[0]
        if machine.leader is None:
            return
        machine.leader = _lead.on_status(machine.leader, status, machine.clock(self.now))
        self.decide(machine)
        to = self.machines[int(status.agent.partition(".")[0])]
        self.send(to, self.to_agent, (status.agent, _lead.order_for(machine.leader, status)), life)

    def to_agent(self, message, life):
        name, order = message
        machine = self.machines[int(name.partition(".")[0])]
        if machine.agent is None or machine.agent.status.agent != name:
            return
        machine.agent = _members.on_order(machine.agent, order, machine.clock(self.now))
        machine.silent_since = self.now
        self.obey(machine)

    # The processes.

    def obey(self, machine):
        """Start, kill or leave, as the state of the agent says."""
        agent = machine.agent
        if agent.order and machine.alive is None:
            self.start(machine, agent.order)
        elif agent.order is None and machine.alive is not None:
            self.after(self.drawn.uniform(0, 1), self.end, machine, machine.alive, ())
        elif agent.status.signal and machine.alive is not None:
            self.after(12, self.end, machine, machine.alive, ())
        elif agent.status.is_running is False and agent.last is not None:
            machine.left_with = agent.last.exit_code
            self.leave(machine)
        elif not agent.status.is_running and self.now - machine.silent_since > PATIENCE_SECONDS:
            machine.left_with = 6
            self.leave(machine)

    def leave(self, machine):
        if machine.leader is not None and not _lead.is_done(machine.leader, machine.clock(self.now)):
            machine.left_with = None  # the launcher with the leader stays until all know
            return
        is_replaced = machine.agent.status.signal and machine.number and self.drawn.random() < 0.5
        machine.agent = machine.leader = None
        if is_replaced and not self.is_calm():
            self.after(self.drawn.uniform(1, 30), self.boot, machine)

    def start(self, machine, order):
        generation = (order.leader, order.generation)
        for other in self.machines:
            assert other.alive in (None, generation), "processes of two generations at the same time"
        machine.alive = generation
        first = order.first(machine.agent.status.agent)
        numbers = tuple(range(first, first + machine.agent.status.num_processes))
        run = self.started.setdefault(
            generation, {"order": replace(order, answers=0, signal=0), "numbers": {}}
        )
        assert run["order"] == replace(order, answers=0, signal=0), "one generation under two orders"
        assert machine.number not in run["numbers"], "a generation that starts twice"
        taken = [number for others in run["numbers"].values() for number in others]
        assert not set(numbers) & set(taken), "a number twice"
        run["numbers"][machine.number] = numbers
        fate = self.fates.setdefault(generation, self.fate(order.num_processes))
        if len(taken) + len(numbers) == order.num_processes:  # all are there
            self.after(fate["seconds"], self.fulfil, generation, fate)

    def fate(self, num_processes):
        kind = "done" if self.is_calm() else self.drawn.choice(["done", "fails", "fails", "final"])
        return {
            "kind": kind,
            "seconds": self.drawn.expovariate(1 / self.drawn.choice([8, 40])),
            "of": self.drawn.randrange(num_processes),
        }

    def fulfil(self, generation, fate):
        """All processes end, or one fails and the others may notice."""
        run = self.started[generation]
        if any(machine.alive != generation for machine in self.machines if machine.number in run["numbers"]):
            return
        if self.drawn.random() < 0.5:
            self.saved += 1
        code = {"done": 0, "fails": self.drawn.choice([1, -9]), "final": 3}[fate["kind"]]
        for number, numbers in run["numbers"].items():
            machine = self.machines[number]
            if code == 0:
                ends = [End(one, f"host{number}", 0) for one in numbers]
            elif fate["of"] in numbers:
                ends = [End(fate["of"], f"host{number}", code)]
            elif self.drawn.random() < 0.5:
                ends = [End(one, f"host{number}", 6) for one in numbers]
            else:
                continue  # it hangs
            self.after(self.drawn.uniform(0, 0.5), self.end, machine, generation, tuple(ends))

    def end(self, machine, generation, ends):
        if machine.alive != generation or machine.agent is None:
            return
        machine.alive = None
        saved = self.saved if machine.number == 0 and self.saved >= 0 else None
        machine.agent = _members.on_ends(machine.agent, ends, saved)


def play(seed, share_late=0.1):
    """Play one random history and check it."""
    drawn = random.Random(seed)
    hosts = drawn.randint(1, 4)
    world = World(
        drawn, hosts, drawn.randint(1, hosts), drawn.randint(0, 4), drawn.uniform(0, 180), share_late
    )
    for machine in world.machines:
        world.after(drawn.uniform(0, 10), world.boot, machine)
    for _ in range(drawn.randint(0, 4)):
        world.after(drawn.uniform(0, world.quiet_after), world.die, drawn.choice(world.machines))
    for _ in range(drawn.randint(0, 3)):
        cut_off = drawn.choice(world.machines), drawn.uniform(1, 80)
        world.after(drawn.uniform(0, world.quiet_after), world.cut_off, *cut_off)
    for _ in range(drawn.choice([0, 0, 1, 2])):
        world.after(
            drawn.uniform(0, 100), world.interrupt, drawn.choice(world.machines), drawn.choice([2, 15])
        )
    world.play(until=1000)
    check(world)
    return world


def check(world):
    """Check what a history must have come to."""
    for machine in world.machines:
        assert machine.left_with is not None, f"machine {machine.number} never leaves"
        assert machine.alive is None, f"machine {machine.number} leaves processes behind"
        assert machine.told in (None, machine.left_with), "a machine leaves with another exit code"
    for before, after in world.decided:
        if after.phase is Phase.GATHERING:
            assert after.restarts.used <= world.allowed, "more restarts than allowed"
            assert after.restarts != before.restarts or before.phase is Phase.GATHERING
        if after.phase is Phase.RUNNING:
            assert world.min_hosts <= len(after.members) <= world.hosts
