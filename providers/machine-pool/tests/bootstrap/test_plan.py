"""Decisions from the state of a machine."""

import pytest
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    File,
    HostState,
    JobState,
    bootstrap_message,
    mask,
    next_bootstrap_step,
    next_clean_step,
    read_host_state,
    secrets_of,
)
from capelin_machine_pool.bootstrap.plan import UnreadableStateError

RUNS = JobState(alive=True)
KILLED = JobState(alive=False)
JOINED = JobState(alive=False, exit_code=0, sentinel=True)
FAILED = JobState(alive=False, exit_code=1)


def host(
    marker: str | None = "uid",
    *,
    bootstrap: JobState | None = None,
    clean: JobState | None = None,
    node_files: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    baseline: str | None = None,
    differences: tuple[str, ...] = (),
) -> HostState:
    return HostState(
        boot_id="1",
        hostname="shoal-1",
        marker=marker,
        bootstrap=bootstrap,
        clean=clean,
        node_files=node_files,
        missing=missing,
        baseline=baseline,
        differences=differences,
    )


@pytest.mark.parametrize(
    ("observed", "step"),
    [
        (host(None), BootstrapStep.MARK),
        (host(None, node_files=("/etc/kubernetes/kubelet.conf",)), BootstrapStep.DIRTY),
        (host(None, differences=("new link cni0",)), BootstrapStep.DIRTY),
        (host(None, missing=("flock",)), BootstrapStep.UNFIT),
        (host("other"), BootstrapStep.DIRTY),
        (host("other", bootstrap=JOINED), BootstrapStep.DIRTY),
        (host(), BootstrapStep.START),
        (host(clean=RUNS), BootstrapStep.DIRTY),
        (host(clean=FAILED), BootstrapStep.DIRTY),
        (host(bootstrap=RUNS), BootstrapStep.WAIT),
        (host(bootstrap=KILLED), BootstrapStep.INTERRUPTED),
        (host(bootstrap=FAILED), BootstrapStep.FAILED),
        (host(bootstrap=JOINED), BootstrapStep.SUCCEEDED),
    ],
)
def test_next_bootstrap_step(observed: HostState, step: BootstrapStep) -> None:
    assert next_bootstrap_step("uid", observed) is step


@pytest.mark.parametrize(
    ("observed", "step"),
    [
        (host(None), CleanStep.CLEAN),
        (host("other"), CleanStep.OTHER),
        (host(), CleanStep.START),
        (host(clean=KILLED), CleanStep.START),
        (host(clean=RUNS), CleanStep.WAIT),
        (host(clean=FAILED), CleanStep.FAILED),
    ],
)
def test_next_clean_step(observed: HostState, step: CleanStep) -> None:
    assert next_clean_step("uid", observed) is step


def test_failed_clean_up_runs_again_on_request() -> None:
    assert next_clean_step("uid", host(clean=FAILED), retry=True) is CleanStep.START


def test_state_is_read() -> None:
    output = (
        b"boot=1\nhostname=shoal-1\nmarker=uid\nbootstrap.alive=no\nbootstrap.exit=0 yes\n"
        b"bootstrap.output=am9pbmVk\nnode=/a\nnode=/b\nbaseline=abc\nend=\n"
    )
    job = JobState(alive=False, exit_code=0, sentinel=True, output="joined")
    expected = host(bootstrap=job, node_files=("/a", "/b"), baseline="abc")
    assert read_host_state(output) == expected
    output = b"boot=1\nhostname=shoal-1\ndifference=new link a=b\nend=\n"
    assert read_host_state(output) == host(None, differences=("new link a=b",))


@pytest.mark.parametrize("output", [b"", b"boot=1\nmarker=uid\n", b"end=\n"])
def test_incomplete_state_is_unreadable(output: bytes) -> None:
    with pytest.raises(UnreadableStateError):
        read_host_state(output)


def test_message_shows_the_end_of_the_output() -> None:
    observed = host(bootstrap=JobState(alive=False, exit_code=1, output="x" * 5000 + " the cause"))
    message = bootstrap_message(BootstrapStep.FAILED, observed, CloudConfig())
    assert message.startswith("the bootstrap failed with exit code 1: ...xxx")
    assert message.endswith("the cause")
    assert len(message) < 700


@pytest.mark.parametrize(
    "output",
    [
        "token abcdef.0123456789abcdef expired",
        "certificate key " + "0a" * 32,
        "-----BEGIN CERTIFICATE-----\nMIIB\n",
        "password is hunter2-of-the-sea",
        "line VGhpcyBpcyBhIGtleSBmaWxlLg==",
        "read hunter2-prod",
        "read tidepool",
        "DB_PASS is s3cr3t-db",
        "login admin:letmein",
        "password letmein",
        "proxy password letmeout",
    ],
)
def test_secrets_are_masked(output: str) -> None:
    config = CloudConfig(
        files=(
            File(path="/a", content=b"password: hunter2-of-the-sea\n"),
            File(path="/b", content=b"VGhpcyBpcyBhIGtleSBmaWxlLg==\n", mode=0o600),
            File(path="/c", content=b"the first line\nhunter2-prod\n", mode=0o600),
            File(path="/d", content=b"tidepool\n", mode=0o600),
        ),
        commands=(
            "DB_PASS=s3cr3t-db ./install",
            "curl -u admin:letmein https://10.0.0.1",
            "export https_proxy=http://proxy:letmeout@10.0.0.1",
        ),
    )
    masked = mask(output, secrets_of(config))
    assert masked.endswith(("(hidden)", "(hidden) expired"))


def test_other_output_stays() -> None:
    output = "error execution phase preflight: [ERROR Swap]: running with swap on"
    config = CloudConfig(
        files=(
            File(path="/join", content=b"kind: JoinConfiguration\nphase: preflight", mode=0o640),
        ),
        commands=("kubeadm join --config /join",),
    )
    assert mask(output, secrets_of(config)) == output
