"""Which versions of Kubernetes may follow which."""

from capelin.versions import Version


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
