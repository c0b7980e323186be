"""Python processes for a fork, instead of the start of an interpreter and seconds of importing JAX.

    python server.py ADDRESS

For each stand-in that connects (`stand_in.py`, which is called as Python is), this program forks a process
that runs what the stand-in was told, with its streams, environment and folder, and tells it how that ended.
They have all imported JAX and Meshwright, and share a seed of hashes: where that matters, `sys.executable` is
to be started. When its standard input is closed, it ends, and so does all that it forked.
"""

import contextlib
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import tempfile
import types
from pathlib import Path

import jax

import meshwright as mw


def serve(address):
    """Return in a fork of this process, for each stand-in, what it is to run."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(address)
    door.listen(64)
    print("open", flush=True)
    while True:
        if select.select([0, door], [], [])[0] != [door]:
            os.killpg(0, signal.SIGKILL)
        stand_in, _ = door.accept()
        if os.fork() == 0:
            door.close()
            return in_a_fork(stand_in)
        stand_in.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def in_a_fork(stand_in):
    """Return in a fork what it is to run; tell the stand-in how that ends, or end it with the stand-in."""
    _, streams, *_ = socket.recv_fds(stand_in, 1, 3)
    request = json.loads(stand_in.makefile().readline())
    pid = os.fork()
    if pid == 0:
        stand_in.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):
        stand_in.sendall(b"%d\n" % pid)
    is_over = os.pidfd_open(pid)
    if is_over not in select.select([is_over, stand_in], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        stand_in.sendall(b"%d\n" % code)
    os._exit(0)


def run(environ, folder, words):
    """Run a program as Python would that is called with these words."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    tempfile.tempdir = None  # which the environment says
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in environ)
    for name in environ.keys() & {name.upper() for name in jax.config.values}:
        configure(name.lower(), environ[name])
    sys.path[:0] = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    match words:
        case ["-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            sys.path.insert(0, folder)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *arguments]:
            sys.argv = [program, *arguments]
            sys.path.insert(0, str(Path(program).parent.absolute()))
            runpy.run_path(program, run_name="__main__")


def configure(name, text):
    """Set a value of JAX's as it would have been read from the environment."""
    kind = type(getattr(jax.config, name))
    if kind is bool:
        jax.config.update(name, text.lower() in ("y", "yes", "t", "true", "on", "1"))
    else:
        jax.config.update(name, kind(text) if kind in (int, float) else text)


if __name__ == "__main__":
    del sys.path[0]  # this folder, which is none of the programs'
    for name in mw.__all__:
        getattr(mw, name)  # which imports the module that it is from
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # programs are killed in every way
    # Workers of pytest ignore Ctrl-C, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(**serve(sys.argv[1]))
