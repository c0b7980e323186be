"""Processes that run real code and take turns, as a seed says: any of them may die at any point.

Each thread of a simulated process is a thread here, but only one runs at a time. It runs until it does
something that others could see, such as an operation on a file (`step`), or waits for others (`wait`). There
the turn passes to one of those that can go on, and a process may die. Time is simulated: it moves on when all
wait.
"""

import threading
from dataclasses import dataclass, field

_LONGEST_SECONDS = 3600
"""The simulated time after which nobody waits any more for good reasons."""


class Killed(BaseException):
    """Raised in all threads of a process that was killed; what they still do has no effect."""


@dataclass(eq=False)
class Process:
    """A process of a run, which has the numbers from 0 to `count` - 1."""

    run: int
    number: int = 0
    count: int = 1
    group: list = field(default_factory=list)
    """All processes of the run."""
    host: int = 0
    """The machine that it runs on."""
    is_alive: bool = True
    has_ended_well: bool = False
    stands_until: int = 0
    """The number of the step until which it stands still, though it lives."""
    collectives: int = 0
    """The number of collectives that it has begun."""


@dataclass(eq=False)
class Actor:
    """A thread of a process. It waits while `condition` is false and the time is before `until`."""

    process: Process
    condition: object = None
    until: float = float("inf")
    is_over: bool = False
    turn: object = field(default_factory=threading.Lock)
    ident: int = 0


class World:
    """All processes. `drawn` is the generator that everything follows from."""

    def __init__(self, drawn):
        self.drawn, self.now, self.num_steps = drawn, 0.0, 0
        self.actors, self.current, self.failure = [], None, None
        self.on_step, self.on_death = lambda: None, lambda process: None
        self.switching = drawn.choice([0.05, 0.15, 0.6])
        """How often the turn passes to another thread."""
        self._end = threading.Lock()
        self._end.acquire()

    def spawn(self, process, act):
        """Begin a thread of a process, which calls `act`."""
        actor = Actor(process)
        actor.turn.acquire()
        self.actors.append(actor)
        threading.Thread(target=self._live, args=(actor, act), daemon=True).start()
        return actor

    def play(self):
        """Let all threads run until they have ended; raise the first failure of one."""
        self._pass_on()
        self._end.acquire()
        if self.failure:
            raise self.failure

    def kill(self, process):
        if process.is_alive:
            process.is_alive = False
            self.on_death(process)

    def step(self):
        """Let others go before this thread does something that they could see, and die here if it must."""
        me = self.current
        if me is None or threading.get_ident() != me.ident:
            return  # a thread that helps, while the one that has the turn waits for it
        if me.process.is_alive:
            self.num_steps += 1
            self.on_step()
            if self.drawn.random() < self.switching or self._stands(me):
                self._pass_on()
        if not me.process.is_alive:
            raise Killed

    def wait(self, condition, seconds=float("inf")):
        """Wait until a condition is true, or for a time at most; return whether it is."""
        me = self.current
        self.step()
        me.condition, me.until = condition, self.now + seconds
        self._pass_on()
        me.condition, me.until = None, float("inf")
        if not me.process.is_alive:
            raise Killed
        return condition()

    def _live(self, actor, act):
        actor.ident = threading.get_ident()
        actor.turn.acquire()
        try:
            if actor.process.is_alive:
                act()
        except Killed:
            pass
        except BaseException as error:
            self._fail(error)
        actor.is_over = True
        self.actors.remove(actor)
        self._pass_on()

    def _pass_on(self):
        """Give the turn to a thread that can go on, and wait until this one has it again."""
        me, chosen = self.current, self._next()
        if chosen is me and chosen is not None:
            return
        self.current = chosen
        (chosen.turn if chosen else self._end).release()
        if me is not None and not me.is_over:
            me.turn.acquire()

    def _next(self):
        if not self.actors:
            return None
        ready = [actor for actor in self.actors if self._is_ready(actor)]
        if not ready and any(self._stands(actor) for actor in self.actors):
            for actor in self.actors:
                actor.process.stands_until = 0
            return self._next()
        if not ready:
            self.now = min(actor.until for actor in self.actors)
            if self.now > _LONGEST_SECONDS:
                self._fail(AssertionError("some wait for ever"))
            ready = [actor for actor in self.actors if self._is_ready(actor)]
        return ready[int(self.drawn.random() * len(ready))]

    def _is_ready(self, actor):
        if self._stands(actor):
            return False
        return (
            actor.condition is None
            or not actor.process.is_alive
            or self.now >= actor.until
            or actor.condition()
        )

    def _stands(self, actor):
        return actor.process.is_alive and self.num_steps < actor.process.stands_until

    def _fail(self, error):
        """Note the first failure, and end everything."""
        self.failure = self.failure or error
        for process in {id(actor.process): actor.process for actor in self.actors}.values():
            self.kill(process)
