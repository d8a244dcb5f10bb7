"""The diagram of the program `dev`: `python -m infra.tests.graph` updates it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .recorded import Registered, program, registered

_ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (_ROOT / "docs" / "how-to" / "pulumi.md",)
_STACK: Final = "pulumi:pulumi:Stack"
# A page may have other diagrams. This one contains the resource that all others need.
_PICTURE: Final = re.compile(r"```mermaid\n(?:(?!```).)*?management-environment.*?```\n", re.DOTALL)
OUTPUTS: Final[dict[str, dict[str, Any]]] = {
    "capelin:index:Environment": {"kubeconfig": "admin", "uid": "u", "running": True},
    "capelin:index:KindCluster": {"kubeconfig": "kind-admin", "uid": "k", "running": True},
    "capelin:index:WorkloadCluster": {"workloadKubeconfig": "workload", "endpoint": "h:1"},
}


def picture() -> str:
    """The resources of the target kind by component, with their dependencies."""
    return diagram(registered(program("dev", target="kind"), OUTPUTS))


def diagram(resources: Mapping[str, Registered]) -> str:
    """A Mermaid flowchart without indirect dependencies."""
    resources = {name: resource for name, resource in resources.items() if resource.type != _STACK}
    parents = {resource.parent for resource in resources.values()}
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
        parent = resources.get(resource.parent)
        own = resource.dependencies - (parent.dependencies if parent else frozenset())
        waits = {each for each in own if not _is_component(resources.get(each))}
        indirect = {far for near in waits for far in _before(resources, near)}
        lines += [f"  {each} --> {name}" for each in sorted(waits - indirect)]
    return "\n".join(lines) + "\n"


def with_picture(text: str) -> str:
    """The page with the current diagram."""
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
