"""`serve`: listens until SIGTERM or Ctrl-C."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.base._internal import PyTree, documented, import_extra
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import GREEDY, Decoding
from meshwright.lm._generation._model import Model
from meshwright.lm._generation._slots import Pool
from meshwright.lm._generation._text import Tokenizer
from meshwright.lm._server._batcher import Batcher
from meshwright.lm._server._guard import guarded, is_loopback


@documented
@dataclass(frozen=True)
class Served:
    """A model, and what clients need to know of it.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> mw.lm.Served("table", model, jnp.eye(256), mw.lm.Bytes()).name
      'table'
    """

    name: str
    """The name that clients ask for."""
    model: Model
    """The model."""
    params: PyTree
    """Its parameters, on one process."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    decoding: Decoding = GREEDY
    """The settings of requests that do not say others, and what ends a text."""
    chat: Callable[[Sequence[Any]], Sequence[int]] | None = None
    """Returns the tokens of a chat up to the next message, given messages; None if the model is no chat's."""
    created: int = field(default_factory=lambda: int(time.time()))
    """The time that clients are told, in seconds since 1970."""


@documented
@dataclass(frozen=True)
class Limits:
    """Bounds on what clients can ask for.

    Example:
      >>> mw.lm.Limits(slots=4).slots
      4
    """

    slots: int = 8
    """The number of texts that are generated at the same time."""
    length: int = 1024
    """The largest number of tokens of a prompt and its answer."""
    max_waiting: int = 256
    """The number of texts that may wait; to more the server answers 503, with `Retry-After`."""
    max_bytes: int = 1 << 20
    """The largest body of a request."""
    body_seconds: float = 10.0
    """The time in which the headers, and then the body, of a request must come."""
    answer_seconds: float = 600.0
    """The time in which an answer must be written and read."""
    stop_seconds: float = 30.0
    """The time that requests have to end after the server is told to stop."""

    @property
    def connections(self) -> int:
        """Return the number of connections above which those without a request are closed for new ones."""
        return self.max_waiting + self.slots + 64


def application(
    served: Served,
    limits: Limits = Limits(),
    *,
    names: set[str] | None = None,
) -> tuple[Any, Batcher]:
    """Return an ASGI application, for a server of your own, and its batcher: close that at the end.

    Args:
      served: The model.
      limits: The bounds.
      names: The hosts that requests may name; None for any.

    Raises:
      UsageError: The model does not support rows of this length, or a package is not installed.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> served = mw.lm.Served("table", model, jnp.eye(256), mw.lm.Bytes())
      >>> app, batcher = mw.lm.application(served, mw.lm.Limits(slots=2, length=32))
      >>> batcher.close()
    """
    import_extra("fastapi", extra="serve", needed_by="the server")
    from meshwright.lm._server._app import app_of

    length = min(limits.length, served.model.positions or limits.length)
    # Only the rows of an encoder-decoder have this bound.
    new = max(256, served.decoding.max_new_tokens)
    pool = Pool(served.model, served.params, served.decoding, length=length, slots=limits.slots, new=new)
    batcher = Batcher(pool, max_waiting=limits.max_waiting)
    bounds: dict[str, Any] = {"max_bytes": limits.max_bytes, "seconds": limits.body_seconds, "names": names}
    return guarded(app_of(served, batcher, limits.answer_seconds), **bounds), batcher


def serve(
    served: Served,
    limits: Limits = Limits(),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Answer requests until the process gets SIGTERM or Ctrl-C; those that run then have time to end.

    Args:
      served: The model.
      limits: The bounds.
      host: The address to listen at. Other machines reach only others than 127.0.0.1: there is no password.
      port: The port; 0 takes a free one.
      on_ready: A function that gets the URL when the server listens.

    Raises:
      UsageError: It cannot listen there, or a package is not installed.

    Example:
      >>> import os, signal
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> served = mw.lm.Served("table", model, jnp.eye(256), mw.lm.Bytes())
      >>> stop = lambda url: os.kill(os.getpid(), signal.SIGTERM)
      >>> mw.lm.serve(served, mw.lm.Limits(slots=2, length=32), port=0, on_ready=stop)
    """
    import_extra("uvicorn", extra="serve", needed_by="the server")
    listening = _listening(host, port)
    with listening:
        names = {"127.0.0.1", "localhost", "::1", host.lower()} if is_loopback(host) else None
        app, batcher = application(served, limits, names=names)
        url_host = f"[{host}]" if ":" in host else host
        url = f"http://{url_host}:{listening.getsockname()[1]}"
        try:
            asyncio.run(_listen(app, listening, limits, batcher, lambda: on_ready(url)))
        finally:
            batcher.close()


async def _listen(
    app: Any, listening: socket.socket, limits: Limits, batcher: Batcher, on_ready: Callable[[], None]
) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        """A server whose signals are handled here, so that the process ends with 0."""

        def capture_signals(self) -> Any:
            return _NOTHING

    server = Server(config_of(app, limits))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.01)
    if not serving.done():
        on_ready()
    await serving


def config_of(app: Any, limits: Limits) -> Any:
    """Return the config of uvicorn for an application."""
    import uvicorn

    from meshwright.lm._server._guard import protocol

    return uvicorn.Config(
        app,
        http=protocol(limits.body_seconds, limits.answer_seconds, limits.connections),
        ws="none",
        lifespan="off",
        access_log=False,
        # Uvicorn's own config would close the handlers of the program's logging.
        log_config=None,
        log_level="warning",
        # Uvicorn counts connections with a request each.
        limit_concurrency=limits.connections + 64,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.stop_seconds),
        server_header=False,
    )


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UsageError(
            f"cannot listen at {host}, port {port}: {reason}.\n"
            "  Give another --port, or 0 for any that is free."
        ) from None
    if not is_loopback(host):
        print(f"! {host} is reached by other machines, and there is no password.", file=sys.stderr)
    return server
