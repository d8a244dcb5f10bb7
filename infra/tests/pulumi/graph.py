"""The picture of the program `dev`: `python -m infra.tests.pulumi.graph` draws it anew."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from capelin_infra.pulumi.programs import DevConfig, dev

from .recorded import Registered, registered

_ROOT: Final = Path(__file__).parents[3]
PAGES: Final = (_ROOT / "docs" / "how-to" / "pulumi.md",)
_STACK: Final = "pulumi:pulumi:Stack"
# A page may have other pictures. This one has the resource that all others stand on.
_PICTURE: Final = re.compile(r"```mermaid\n(?:(?!```).)*?management-environment.*?```\n", re.DOTALL)
OUTPUTS: Final[dict[str, dict[str, Any]]] = {
    "capelin:index:Environment": {"kubeconfig": "admin", "version": "v1.33.13", "running": True},
    "capelin:index:KindCluster": {"kubeconfig": "kind-admin", "running": True},
    "capelin:index:WorkloadCluster": {"workloadKubeconfig": "workload", "endpoint": "h:1"},
}


def picture() -> str:
    """The resources of the target kind by their components, and what each one waits for."""
    return diagram(registered(lambda: dev(DevConfig(target="kind")), OUTPUTS))


def diagram(resources: Mapping[str, Registered]) -> str:
    """A Mermaid flowchart. What is waited for by way of something else is left out."""
    resources = {name: each for name, each in resources.items() if each.type != _STACK}
    parents = {each.parent for each in resources.values()}
    lines = ["flowchart LR"]
    for name, resource in resources.items():
        if name in parents and _is_component(resource):
            children = [each for each in resources.values() if each.parent == name]
            lines.append(f"  subgraph {name}")
            lines += [f"    {_node(each)}" for each in children if not _is_component(each)]
            lines.append("  end")
    lines += [
        f"  {_node(each)}"
        for each in resources.values()
        if not _is_component(each) and not _is_component(resources.get(each.parent))
    ]
    for name, resource in resources.items():
        waits = {each for each in resource.dependencies if not _is_component(resources.get(each))}
        indirect = {far for near in waits for far in _before(resources, near)}
        lines += [f"  {each} --> {name}" for each in sorted(waits - indirect)]
    return "\n".join(lines) + "\n"


def with_picture(text: str) -> str:
    """The page with the picture as it is now."""
    return _PICTURE.sub(lambda _: f"```mermaid\n{picture()}```\n", text, count=1)


def _node(resource: Registered) -> str:
    kind = resource.type.rpartition(":")[2]
    title = f"API server {resource.name}" if kind == "kubernetes" else kind
    return f'{resource.name}["{title}"]'


def _is_component(resource: Registered | None) -> bool:
    return resource is not None and resource.type.startswith("capelin:components:")


def _before(resources: Mapping[str, Registered], name: str) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        resource = resources.get(left.pop())
        new = set(resource.dependencies) - found if resource else set[str]()
        found |= new
        left += new
    return found


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_picture(page.read_text()))
