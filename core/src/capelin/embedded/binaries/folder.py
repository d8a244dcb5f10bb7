"""Programs from a folder that the user names."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.binaries.catalogue import Wanted
from capelin.embedded.binaries.errors import BinariesError, WayFailedError

WAY = "folder"
OURS = "CAPELIN_BINARIES"
ENVTESTS = "KUBEBUILDER_ASSETS"
_PATIENCE = 10.0
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


class WrongVersionError(WayFailedError):
    """The program is there, in another version than was asked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A program in a folder, with its version if it was asked and told."""

    file: Path
    version: str | None


def named_folders(given: Sequence[Path], environment: Mapping[str, str]) -> list[Path]:
    """The folders to look in, in their order; several stand in a variable as they do in PATH."""
    ours = [Path(each) for each in environment.get(OURS, "").split(os.pathsep) if each]
    for folder in (*given, *ours):
        if not folder.is_dir():
            by = "" if folder in given else f" ({OURS} names it)"
            raise BinariesError(f"{folder} is not a folder with programs{by}; correct the path")
    # Other tools set this one, so it may be stale: then it is passed over.
    envtests = [Path(each) for each in (environment.get(ENVTESTS),) if each]
    return [folder.absolute() for folder in (*given, *ours, *envtests)]


async def look(folders: Sequence[Path], wanted: Wanted, environment: Mapping[str, str]) -> Found:
    """The first program of that name whose version is the one that was asked for."""
    if not folders:
        raise WayFailedError(f"none is named ({OURS} and {ENVTESTS} are not set)")
    reasons: list[str] = []
    failure = WayFailedError
    for folder in folders:
        file = folder / wanted.component.name
        if not file.is_file() or not os.access(file, os.X_OK):
            reasons.append(f"{folder} has no program {wanted.component.name}")
            continue
        try:
            version = await _version(file, wanted, environment) if wanted.asked else None
        except WayFailedError as error:
            reasons.append(str(error))
            continue
        if version is None or version == wanted.version:
            return Found(file, version)
        reasons.append(f"{file} is {version}")
        failure = WrongVersionError
    raise failure("; ".join(reasons))


async def _version(file: Path, wanted: Wanted, environment: Mapping[str, str]) -> str | None:
    arguments = wanted.component.says_version
    if arguments is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            file,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # clusterctl asks the internet for newer versions before it tells its own.
            env={**environment, "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"},
        )
    except OSError as error:
        raise WayFailedError(f"{file} cannot be run ({error.strerror})") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
    except TimeoutError as error:
        raise WayFailedError(f"{file} does not tell its version in {_PATIENCE:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise WayFailedError(f"{file} does not run (exit status {process.returncode})")
    told = _VERSION.search(output.decode(errors="replace"))
    return f"v{told[1]}" if told else None
