"""Upgrades that Kubernetes allows."""

from capelin.versions import Version


def upgrade_problem(current: str, wanted: str) -> str | None:
    """Why a control plane cannot change from one version to another, or `None` if it can."""
    here, there = Version.parse(current), Version.parse(wanted)
    if there.precedes(here):
        return f"{there} is older than {here}, and Kubernetes cannot downgrade. Use {here} or newer"
    if there.major != here.major:
        return f"no upgrade from {here} to {there} exists. Stay with v{here.major}"
    if there.minor - here.minor > 1:
        return (
            f"{there} is {there.minor - here.minor} minor versions after {here}, and Kubernetes "
            f"upgrades one at a time. Upgrade to v{here.major}.{here.minor + 1} first"
        )
    return None
