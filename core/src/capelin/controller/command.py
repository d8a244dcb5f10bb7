"""A manager's command line: what a provider's `__main__` calls."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from capelin.client import ClientError, Config, LeadershipLost
from capelin.controller import logs
from capelin.controller.manager import Manager
from capelin.controller.options import Options, OptionsError, OptionsT, parse
from capelin.controller.probes import ListenError
from capelin.controller.reconciler import Reconciler
from capelin.controller.watching import WatchLostError

log = logging.getLogger(__name__)


def main(
    name: str,
    build: Callable[[OptionsT], Sequence[Reconciler[Any]]],
    options: type[OptionsT] = Options,
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run a manager until SIGTERM or SIGINT; returns the exit code for `sys.exit`.

    Args:
        name: the manager's name: of the process in logs, of its lease, and as field manager.
        build: makes the reconcilers once the options are known.
        options: the class of the options, for managers with more flags than the usual ones.
        arguments: the command line, if not the process's own.
        environ: the environment, if not the process's own.
    """
    try:
        chosen = parse(
            options,
            name,
            f"Runs the controllers of {name}.",
            sys.argv[1:] if arguments is None else arguments,
            environ,
        )
        logs.configure(chosen.log_format, chosen.verbosity)
        config = Config.find(chosen.kubeconfig, environ=environ)
        manager = Manager(name, build(chosen), chosen, config)
        asyncio.run(serve(manager))
    except OptionsError as error:
        sys.stderr.write("".join(f"{name}: {line}\n" for line in str(error).splitlines()))
        return 2
    except (ClientError, ListenError, WatchLostError) as error:
        log.error("%s", error)  # noqa: TRY400 - it says all there is to know
        return 1
    except Exception:
        log.exception("The manager failed")
        return 1
    return 0


class Stoppable(Protocol):
    """What `serve` has to know of a manager."""

    def stop(self) -> None:
        """Have `run` return."""

    async def run(self) -> None:
        """Work."""


async def serve(manager: Stoppable) -> None:
    """Run a manager until a signal stops it."""
    loop = asyncio.get_running_loop()

    def stop(number: int, _: object) -> None:
        log.info("Stopping on %s", signal.Signals(number).name)
        # Whoever asks twice does not want to wait.
        signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(manager.stop)

    # Not the loop's own signal handlers: there is one for each signal, and kopf sets it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        await manager.run()
    except LeadershipLost as error:
        log.error("%s", error)  # noqa: TRY400 - it says all there is to know
        # Another may lead: what does not let itself be cancelled, as a thread, ends here too.
        logging.shutdown()
        os._exit(1)
