"""Which versions of Kubernetes may follow or join which."""

from collections import Counter
from collections.abc import Iterable

from capelin.versions import Version

KUBELETS_MAY_TRAIL_BY = 3
"""How many minor versions a kubelet may be older than its API server."""


def upgrade_problem(current: str, wanted: str) -> str | None:
    """Why a control plane cannot go from one version to another; nothing when it can."""
    here, there = Version.parse(current), Version.parse(wanted)
    if there.precedes(here):
        return f"{there} is older than {here}, and Kubernetes cannot go back; give {here} or newer"
    if there.major != here.major:
        return f"nobody knows how to go from {here} to {there}; stay with v{here.major}"
    if there.minor - here.minor > 1:
        return (
            f"{there} is {there.minor - here.minor} minor versions after {here}, and Kubernetes "
            f"goes up one at a time; go to v{here.major}.{here.minor + 1} first"
        )
    return None


def kubelet_problem(kubelet: str, api_server: str) -> str | None:
    """Why a kubelet cannot join an API server of a version; nothing when it can."""
    node, server = Version.parse(kubelet), Version.parse(api_server)
    if node.release > server.release:
        return (
            f"kubelet {node} is newer than its API server {server}; upgrade the control plane first"
        )
    if node.major != server.major or server.minor - node.minor > KUBELETS_MAY_TRAIL_BY:
        return (
            f"kubelet {node} is more than {KUBELETS_MAY_TRAIL_BY} minor versions older than its "
            f"API server {server}; upgrade the node first"
        )
    return None


def count_versions(running: Iterable[str]) -> dict[str, int]:
    """How many replicas run which version, the oldest first, as `status.versions` lists them.

    The first is what `status.version` says. Rule `control-plane/version`.
    """
    counted = Counter(map(Version.parse, running))
    return {str(version): counted[version] for version in sorted(counted)}


def is_upgrading(wanted: str, running: Iterable[str]) -> bool:
    """Whether core sees an upgrade going on: a running version that is not yet the wanted one.

    A replica that is newer than wanted counts as done, as it does for core; another build of the
    same version does not.
    """
    want = Version.parse(wanted)
    return any(
        version.precedes(want) or (not want.precedes(version) and _rebuilt(version, want))
        for version in map(Version.parse, running)
    )


def _rebuilt(old: Version, new: Version) -> bool:
    """Whether the build of `new` is greater than, or simply other than, that of `old`."""
    for before, after in zip(old.build, new.build, strict=False):
        if before == after:
            continue
        if before.isdecimal() and after.isdecimal():
            if int(before) == int(after):
                continue
            return int(after) > int(before)
        return before.isdecimal() or not after.isdecimal()
    return len(new.build) > len(old.build)
