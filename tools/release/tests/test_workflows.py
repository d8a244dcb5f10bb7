"""The workflows of a release: permission to sign, and the code that they run."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = Path(__file__).parents[3] / ".github" / "workflows"
JOBS = [
    pytest.param(job, id=f"{file.stem}-{name}")
    for file in sorted(WORKFLOWS.glob("*.yaml"))
    for name, job in yaml.safe_load(file.read_text())["jobs"].items()
]


@pytest.mark.parametrize("job", JOBS)
def test_actions_are_pinned_by_commit(job: dict[str, Any]) -> None:
    actions = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [action for action in actions if not re.search("@[0-9a-f]{40}$", action)] == []


@pytest.mark.parametrize("job", JOBS)
def test_images_are_pinned_by_digest(job: dict[str, Any]) -> None:
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    images = re.findall(r"docker (?:pull|run) (?:-\S+ )*(\S+)", commands)
    images += [job["container"]] if "container" in job else []
    assert [image for image in images if not re.search("@sha256:[0-9a-f]{64}$", image)] == []


@pytest.mark.parametrize("job", JOBS)
def test_builds_run_locked_code_and_cannot_sign(job: dict[str, Any]) -> None:
    commands = [step["run"] for step in job["steps"] if "uv run" in step.get("run", "")]
    assert all("uv run --locked" in command for command in commands)
    assert all("--script-mode none" in command for command in commands if "nox" in command)
    may_sign = {"id-token", "attestations"} & set(job.get("permissions", {}))
    assert not (commands and may_sign)


@pytest.mark.parametrize("job", JOBS)
def test_uv_has_a_fixed_version(job: dict[str, Any]) -> None:
    installed = [step for step in job["steps"] if "setup-uv" in step.get("uses", "")]
    assert [step for step in installed if "version" not in step.get("with", {})] == []


def test_a_job_signs_only_the_digests_of_the_build() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yaml").read_text())["jobs"]
    signing = [name for name, job in jobs.items() if "cosign sign" in str(job["steps"])]
    assert signing == ["sign"]
    assert "imagetools" not in str(jobs)
    assert jobs["sign"]["environment"] == jobs["registry"]["environment"] == "registry"
