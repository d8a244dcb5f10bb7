"""The command `capelin ui`: a server on this machine's loopback address, until Ctrl-C."""

import asyncio
import errno
import signal
import socket
import sys
import webbrowser
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvicorn
from capelin.errors import InvalidInputError, NotReadyError, UserError
from capelin.programs import run_program
from capelin_embedded.processes import write_private
from rich.console import Console

from capelin_cli.environments.connection import find_environment, management_client
from capelin_cli.ui.access import Access
from capelin_cli.ui.explaining import Explainer
from capelin_cli.ui.observed import Key
from capelin_cli.ui.server import Site, application
from capelin_cli.ui.store import Store
from capelin_cli.ui.watching import Watcher

LOOPBACK: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Planning:
    """Computes one plan at a time."""

    command: Sequence[str]
    """`capelin plan cluster` with the options that name the management cluster."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def plan(self, key: Key, version: str) -> bytes:
        """The JSON of the effect of another version.

        Raises:
            UserError: The plan is not possible, or another one is being computed.
        """
        if self._turn.locked():
            raise NotReadyError(
                "Another plan is being computed.", reason="Each needs a core and 800 MiB of memory."
            )
        namespace, name = key
        async with self._turn:
            options = (f"--namespace={namespace}", f"--version={version}", "--output=json")
            # This signal makes it remove its sandbox.
            ended = await run_program(*self.command, name, *options, ends_by=signal.SIGINT)
        if not ended.output:
            raise UserError(ended.errors)
        return ended.output


def planning(*options: str) -> Planning:
    """Plans about the management cluster that options name."""
    return Planning((sys.executable, "-m", "capelin_cli", "plan", "cluster", *options))


@dataclass(frozen=True, slots=True)
class UiOptions:
    """The options of the command."""

    environment: str
    kubeconfig: Path | None = None
    namespace: str | None = None
    """Only the clusters of this namespace."""
    port: int = 0
    """0 chooses a free one."""
    open_browser: bool = False
    allow_actions: bool = False


async def run_ui(options: UiOptions) -> None:
    """Serve the page until the process is interrupted."""
    environment = None if options.kubeconfig else find_environment(options.environment)
    client = management_client(options.environment, options.kubeconfig)
    listener = listen(options.port)
    console = Console(highlight=False)
    async with AsyncExitStack() as exits:
        await exits.enter_async_context(client)
        store = Store(lambda: datetime.now(UTC))
        explainer = Explainer(client, store, environment)
        site = Site(
            store,
            Access.at(listener.getsockname()[1]),
            explainer,
            title=_title(options),
            plans=planning(*command_options(options)).plan,
        )
        if options.allow_actions:
            # The verbs import the provider, which takes 10 MiB.
            from capelin_cli.ui.actions import actions  # noqa: PLC0415

            site.actions = actions(options.environment, options.kubeconfig)
        site.on_opened = lambda: _print(console, "Opened. For another browser", link(site.access))
        watcher = Watcher(client, store, options.namespace)
        # The browser may read the file in this folder at any later time.
        folder = exits.enter_context(TemporaryDirectory())
        await exits.enter_async_context(serving(site, listener))
        async with asyncio.TaskGroup() as group:
            group.create_task(watcher.run())
            group.create_task(explainer.run())
            _print(console, f"Clusters of {site.title}", link(site.access))
            changes = "can request changes" if options.allow_actions else "only reads"
            console.print(f"The link works once. The page {changes}. End it with Ctrl-C.")
            if options.open_browser:
                await asyncio.to_thread(open_browser, link(site.access), Path(folder))


def command_options(options: UiOptions) -> tuple[str, ...]:
    """The options that name the management cluster."""
    if options.kubeconfig is not None:
        return (f"--kubeconfig={options.kubeconfig}",)
    return (f"--environment={options.environment}",) if options.environment else ()


def _title(options: UiOptions) -> str:
    if options.kubeconfig is None:
        return f"environment {options.environment}"
    return options.kubeconfig.name


def _print(console: Console, text: str, address: str) -> None:
    console.print(f"{text}: {address}", markup=False, soft_wrap=True)


def link(access: Access) -> str:
    """The address that opens a page once. Browsers do not send its fragment."""
    host = next(host for host in sorted(access.hosts) if host.startswith(LOOPBACK))
    return f"http://{host}/#token={access.link_token}"


def listen(port: int) -> socket.socket:
    """A socket that only this machine can reach.

    Raises:
        InvalidInputError: The port is in use, or needs privileges.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        reason = "in use" if error.errno == errno.EADDRINUSE else "for privileged programs only"
        raise InvalidInputError(
            f"Port {port} cannot be used.",
            reason=f"It is {reason}.",
            hint="Name another one, or leave out --port.",
        ) from None
    listener.listen()
    return listener


@asynccontextmanager
async def serving(site: Site, listener: socket.socket) -> AsyncGenerator[None]:
    """The site on a socket, for as long as the block lasts."""
    config = uvicorn.Config(
        application(site),
        # This protocol limits the head of a request.
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave Ctrl-C to the command."""
        yield


def open_browser(address: str, folder: Path, show: Callable[[str], bool] = webbrowser.open) -> None:
    """Open a page in the user's browser.

    Other users see the arguments of programs, so the browser gets a private file that leads to the
    address.
    """
    file = folder / "capelin.html"
    target = escape(address, quote=True)
    write_private(file, f'<meta http-equiv="refresh" content="0;url={target}">'.encode())
    show(file.as_uri())
