"""Run the application: socket, signals and log messages."""

import contextlib
import errno
import signal
import socket
from collections.abc import Generator
from types import FrameType

import uvicorn

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.guard import handlers
from convs2s_jax.serving import app, engine
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.serving.service import Service


def serve(options: ServeOptions, *, tell: Tell) -> None:
    """Serve until SIGTERM or SIGINT. Requests in progress are then finished.

    Raises:
      UserError: the address or the model cannot be used.
      Exception: a program could not be compiled, for example for lack of memory.
    """
    with contextlib.closing(listening_socket(options.host, options.port)) as listener:
        model = engine.load(options, tell=tell)
        failures: list[BaseException] = []

        def failed(error: BaseException) -> None:
            failures.append(error)
            server.should_exit = True

        service = Service(model, options, tell=tell, failed=failed)
        # uvicorn's other parser, httptools, drops the body of a request that offers to continue in HTTP/2, as Java's do
        config = uvicorn.Config(
            app.make(service),
            http="h11",
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=options.drain,
        )
        server = _Server(config)
        with handlers(dict.fromkeys((signal.SIGTERM, signal.SIGINT), server.stop)):
            tell(f"serving on {address_of(listener)}; compiling {service.programs} programs")
            server.run(sockets=[listener])  # with uvloop, which `asyncio.run` would not use
        if not server.started:
            raise UserError("the server could not start; see the message above")
        if failures:
            raise failures[0]
        tell("stopped")


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and listens.

    Raises:
      UserError: the port is in use, or the address does not exist.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a valid host name"
        raise UserError(f"--host={host}: {why}; use an address of this machine") from error
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(place)
        made.listen(128)  # if two servers start together, one of them fails here
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port={port} is already in use by another program; choose another port") from error
        raise UserError(
            f"--host={host} --port={port} cannot be used: {error.strerror}; choose another address"
        ) from error
    return made


def address_of(listener: socket.socket) -> str:
    """The address as a URL for a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A server that finishes its requests on SIGTERM and then exits with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to `serve`, also while the event loop closes, which waits for a program being compiled."""
        yield

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Shut down. A second Ctrl-C ends the process at once; a second SIGTERM, as `timeout` sends it, does not."""
        if self.should_exit and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.should_exit = True
