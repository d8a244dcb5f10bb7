"""A second release of a new provider, in which a field of its machine has another name."""

import shutil
from pathlib import Path

from .third_party import Shell

OLDER_SIZE = """
class MachineSpecV1Alpha1(InfraMachineSpec):
    size: Annotated[str, MaxLen(63)] = "small"


@kind(group=GROUP, version=VERSION, name="MyCloudMachine", definition=INFRA_MACHINE)
class MyCloudMachineV1Alpha1(Object[MachineSpecV1Alpha1, InfraMachineStatus]):
    pass


@converts(MyCloudMachineV1Alpha1, MyCloudMachine)
def upgrade(machine: Unstructured) -> None:
    move_field(machine, "spec.size", "spec.flavor")


@converts(MyCloudMachine, MyCloudMachineV1Alpha1)
def downgrade(machine: Unstructured) -> None:
    move_field(machine, "spec.flavor", "spec.size")


@validates(MyCloudMachine)
def flavor_stays(machine: MyCloudMachine, old: MyCloudMachine | None) -> Iterator[Problem]:
    if old is not None and old.spec.flavor != machine.spec.flavor:
        yield Problem("spec.flavor", f"must stay {old.spec.flavor}")
"""


def release_second_version(project: Shell, released: Path) -> None:
    """Rename a field in a new version of the machine, and add a second release to the first."""
    package = project.folder / "src" / "my_cloud"
    changes = {
        package / "api.py": [
            ("import Object, kind", "import Object, kind\nfrom capelin.api import {NAMES}"),
            ("{NAMES}", "Problem, Unstructured, converts, move_field, validates"),
            ('"""The kinds of the provider."""', "\\0\n\nfrom collections.abc import Iterator"),
            ("    size:", "    flavor:"),
            ("VERSION, definition=INFRA_MACHINE", '"v1beta1", definition=INFRA_MACHINE'),
        ],
        package / "reconcilers.py": [("machine.spec.size", "machine.spec.flavor")],
        package / "provider.py": [
            ("from my_cloud.reconcilers", "from my_cloud.api import MyCloudMachineV1Alpha1\n\\0"),
            ("reconcilers=[", "kinds=[MyCloudMachineV1Alpha1], reconcilers=["),
        ],
        project.folder / "pyproject.toml": [('version = "0.1.0"', 'version = "0.2.0"')],
        project.folder / "clusterctl" / "metadata.yaml": [
            ("minor: 1\n", "minor: 1\n    contract: v1beta2\n  - major: 0\n    minor: 2\n")
        ],
    }
    for file, replaced in changes.items():
        text = file.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new.replace("\\0", old))
        file.write_text(text + OLDER_SIZE if file.name == "api.py" else text)
    project.run(
        "uv run pytest --quiet\n"
        'git add . && git commit --quiet --message "a second version" && git tag v0.2.0\n'
        "uv run python -m capelin_release --out second"
    )
    for archive in (project.folder / "second" / "images").glob("*.tar"):
        archive.rename(released / "images" / archive.name)
    folder = Path("clusterctl") / "infrastructure-my-cloud" / "v0.2.0"
    shutil.copytree(project.folder / "second" / folder, released / folder)
