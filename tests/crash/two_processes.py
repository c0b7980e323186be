"""The same with two real processes that save one sharded state."""

import itertools
import os
import random
import signal
import time
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crash.faults import before_each_file_operation
from crash.nursery import Child, report
from crash.scenarios import check
from meshwright.checkpoints import _saving
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.launch._local import free_port
from meshwright.processes import _internal as processes


def values(step):
    return {
        "w": np.random.default_rng(step).standard_normal((100, 1000), np.float32),
        "b": np.arange(7, dtype=np.int32) + step,
    }


def sharded(step):
    """Return the values of a step: of `w` each process has a half, of `b` all."""
    mesh = Mesh(jax.devices(), ("data",))
    shardings = {name: NamedSharding(mesh, PartitionSpec(*axes)) for name, axes in SPECS.items()}
    return {
        name: jax.make_array_from_callback(array.shape, shardings[name], array.__getitem__)
        for name, array in values(step).items()
    }


SPECS = {"w": ("data",), "b": ()}


def two(program):
    """Start two processes of one run, and return them."""
    address = f"127.0.0.1:{free_port()}"
    return [Child(partial(_join, program, address, number)) for number in (0, 1)]


def _join(program, address, number, tell):
    os.environ |= {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(number),
    }
    processes.start_processes(timeout_seconds=400)
    program(tell)


def save_on(directory, tell):
    with Checkpoints(directory, keep=last(2)) as checkpoints:
        states = [sharded(step) for step in range(3)]  # made before, so that most of the time is saving
        restored = checkpoints.resume({**states[0], "step": 0}, None, otherwise=lambda: {"step": -1})
        assert not checkpoints.passed_over
        tell(restored["step"])
        for step in itertools.count(restored["step"] + 1):
            checkpoints.save(step, {**states[step % 3], "step": step})
            checkpoints.wait()
            tell(step)


def killed_of_two(directory, kills):
    """Kill one process of two, or both, at random moments, until `kills` were in a save; start them again."""
    in_a_save = restored = 0
    for num_kills in range(1, 5 * kills):
        children = two(partial(save_on, directory))
        told = max(child.hear() for child in children)
        for _ in range(random.randrange(2)):
            told = max(child.hear() for child in children)
        time.sleep(random.uniform(0, 0.03))
        random.shuffle(children)
        told = max([told, *children[0].kill()])
        time.sleep(random.choice((0, 0, 0.03)))
        told = max([told, *children[1].kill_or_bury()])
        in_a_save += any(directory.glob("step_*.tmp-*"))
        restored += check(directory, told, lambda step: {**values(step % 3), "step": step})
        figures = {"kills": num_kills, "in_a_save": in_a_save, "steps": told + 1, "restored": restored}
        report(**figures)
        if in_a_save == kills:
            break
    return figures


def killed_while_the_other_saves(directory):
    """Kill process 1 when it is to write. Process 0 must hear of it and leave; answer with what it heard."""

    def save_until_alone():
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(1, sharded(1))
            checkpoints.wait()
            if not processes.is_lead():
                before_each_file_operation(directory, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            checkpoints.save(2, sharded(2))
            checkpoints.wait()

    def tell_what_comes_of_it(tell):
        _saving._OTHERS_SECONDS = 0.2
        try:
            save_until_alone()
        except Exception as error:
            tell([type(error).__name__, *error.__notes__])

    lead, peer = two(tell_what_comes_of_it)
    [heard] = lead.wait()
    peer.end()
    check(directory, 1, values)
    return {"heard": heard, "latest": Checkpoints(directory).latest()}


def damage_found_by_one(directory):
    """Damage what process 1 alone reads of the newest checkpoint, and resume."""

    def resume(tell):
        with Checkpoints(directory, keep=last(2)) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, sharded(step))
            checkpoints.wait()
            if processes.is_lead():
                _damage_second_half(directory / "step_00000002")
            processes.barrier("damaged")
            state = checkpoints.resume(sharded(0), None, otherwise=lambda: None)
            checkpoints.save(2, sharded(2))
        mine = state["w"].addressable_shards[0]
        is_step_1 = bool((np.asarray(mine.data) == values(1)["w"][mine.index]).all())
        tell([checkpoints.resumed, list(checkpoints.passed_over), is_step_1])

    told = [child.wait()[0] for child in two(resume)]
    check(directory, 2, values)
    return told


def _damage_second_half(checkpoint):
    source = open_source(checkpoint)
    place = source.manifest.arrays["w"].chunks[1]
    path = checkpoint / source.manifest.files[place.file].name
    content = bytearray(path.read_bytes())
    content[place.offset] ^= 1
    path.write_bytes(content)
