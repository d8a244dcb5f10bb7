"""The scripts that run on a machine, with their values."""

import base64
import hashlib
import shlex
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

from capelin_machine_pool.bootstrap.cloud_config import CloudConfig, File, User
from capelin_machine_pool.bootstrap.installation import (
    ARCHIVES,
    NOTHING,
    STATE_FOLDER,
    Installation,
)

OUTPUT_BYTES: Final = 4096
"""How much of the end of a script's output is read."""
_MARK: Final = "CAPELIN-END-OF-CONTENT"


def observe_script() -> str:
    """Print the state of the machine."""
    return _script("baseline", "observe", max_output=str(OUTPUT_BYTES))


def baseline_script(*, renew: bool) -> str:
    """Record the baseline of a machine that has none, or a new one."""
    return _script("baseline", "take", renew="yes" if renew else "no")


def mark_script(uid: str, machine: str) -> str:
    """Mark the machine as the one of this uid."""
    return _script("baseline", "mark", uid=uid, machine=machine)


def receive_script(sha256: str, offset: int, total: int) -> str:
    """Append the standard input to an archive that has this many bytes of the total."""
    return _script("receive", sha256=sha256, offset=str(offset), total=str(total))


def launch_script(uid: str, job: str, path: str) -> str:
    """Start a script that was written to a path."""
    return _script("launch", uid=uid, job=job, script=path)


def bootstrap_script(uid: str, config: CloudConfig, installation: Installation = NOTHING) -> str:
    """Install programs, and execute bootstrap data. The script contains them."""
    steps = "\n".join([*_install(installation), *_steps(config)])
    digest = hashlib.sha256(steps.encode()).hexdigest()[:16]
    ignored = ",".join(config.ignored_preflight_errors)
    script = _script("install", "bootstrap", uid=uid, digest=digest, ignored=ignored)
    return f"#!/bin/sh\n{script}\n{steps}\n"


def update_script(uid: str, installation: Installation) -> str:
    """Install the programs of another version, and update the node."""
    steps = "\n".join([*_install(installation), "upgrade_node"])
    script = _script("install", "update", uid=uid, version=installation.version)
    return f"#!/bin/sh\n{script}\n{steps}\n"


def clean_script(uid: str) -> str:
    """Undo the bootstrap and verify the result."""
    return f"#!/bin/sh\n{_script('baseline', 'clean', uid=uid)}\n"


def clean_commands(commands: Iterable[str]) -> str:
    """Commands of a user. The first that fails ends them."""
    return "\n".join(["set -e", *commands, ""])


def script_path(job: str, script: str) -> str:
    """Where a script is written. Two controllers do not overwrite each other's."""
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    return f"{STATE_FOLDER}/{job}/script-{digest}"


def _steps(config: CloudConfig) -> Iterable[str]:
    """The steps of cloud-init in its order."""
    yield from _commands("boot", config.boot_commands)
    for file in config.files:
        yield _put(file)
    for user in config.users:
        yield from _user(user)
    if config.ntp_servers:
        servers = shlex.join(config.ntp_servers)
        yield f"set_time_servers {servers} || fail 'cannot set the time servers'"
    yield "code=0"
    yield from _commands("run", config.commands)
    yield 'finish "$code"'


def _install(installation: Installation) -> Iterable[str]:
    if (archive := installation.archive) is not None:
        path = f"{ARCHIVES}/{archive.sha256}"
        failure = shlex.quote(f"cannot install {archive.name}")
        yield f"install_archive {path} {archive.sha256} || fail {failure}"
    if installation.commands:
        path = '"$job/install.commands"'
        yield _decoded("\n".join([*installation.commands, ""]).encode(), f">{path}")
        version = f"KUBERNETES_VERSION={shlex.quote(installation.version)}"
        yield f"(umask 022; cd / && {version} exec /bin/sh -e {path}) 9>&- ||"
        yield '    fail "the commands of installCommands failed with exit code $?"'


def _commands(name: str, commands: Iterable[str]) -> Iterable[str]:
    lines = "\n".join(commands)
    if lines:
        path = f'"$job/{name}.commands"'
        yield _decoded(f"{lines}\n".encode(), f">{path}")
        # Daemons that the commands start must not keep the lock.
        yield f"(umask 022; cd / && exec /bin/sh {path}) 9>&-"
        yield "code=$?"


def _put(file: File) -> str:
    how = "append" if file.append else "write"
    words = shlex.join([file.path, file.owner, f"{file.mode:04o}", how])
    failure = shlex.quote(f"cannot write {file.path}")
    return _decoded(file.content, f"| put {words} || fail {failure}")


def _user(user: User) -> Iterable[str]:
    name = shlex.quote(user.name)
    failure = shlex.quote(f"cannot create the user {user.name}")
    groups = ",".join(user.groups)
    words = shlex.join([user.name, user.gecos, user.home, user.shell, groups, user.primary_group])
    yield f"add_user {words} || fail {failure}"
    if user.password_hash:
        yield _decoded(
            f"{user.name}:{user.password_hash}\n".encode(), f"| chpasswd -e || fail {failure}"
        )
    if user.lock_password:
        yield f"usermod --lock {name} || fail {failure}"
    if user.inactive:
        yield f"usermod --expiredate 1 {name} || fail {failure}"
    if user.sudo:
        rules = "".join(f"{user.name} {rule}\n" for rule in user.sudo.splitlines())
        path = f"/etc/sudoers.d/90-capelin-{user.name}"
        yield _put(File(path=path, content=rules.encode(), mode=0o440))
    if user.ssh_authorized_keys:
        keys = "".join(f"{key}\n" for key in user.ssh_authorized_keys).encode()
        put = f'put "$(home_of {name})/.ssh/authorized_keys" {name} 0600 append'
        yield _decoded(keys, f"| {put} || fail {failure}")
        yield f'chown {name} "$(home_of {name})/.ssh"'


def _decoded(content: bytes, consumer: str) -> str:
    encoded = base64.encodebytes(content).decode()
    return f"base64 -d <<'{_MARK}' {consumer}\n{encoded}{_MARK}"


def _script(*names: str, **values: str) -> str:
    assignments = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
    return "\n".join([*assignments, *map(_source, ("common", *names))])


@cache
def _source(name: str) -> str:
    return (files("capelin_machine_pool.bootstrap") / "shell" / f"{name}.sh").read_text()
