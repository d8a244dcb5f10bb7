"""Fields of a control plane cannot give a tenant access to the host."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.policy import (
    ALLOWED_ARGUMENTS,
    COMPONENT_PORTS,
    Policy,
    read_names,
    read_networks,
)
from capelin_control_plane.backends.processes.components import (
    api_server_port,
    etcd_metrics_port,
    etcd_port,
)
from capelin_control_plane.desired.arguments import CONTROLLER_PORTS
from capelin_control_plane.desired.control_plane import (
    ControlPlane,
    InvalidSpecError,
    desired_state,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEIGHBOUR = "../../127.64.0.9/pki"


def desired(
    spec: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    policy: Policy = Policy(),  # noqa: B008 - it never changes
) -> ControlPlane:
    mine = CapelinControlPlane.read(
        {"metadata": {"name": "one", "namespace": "sea"}, "spec": {"version": "v1.34.4", **spec}}
    )
    theirs = Cluster.read(
        {"metadata": {"name": "shoal", "namespace": "sea"}, "spec": cluster or {}}
    )
    return desired_state(mine, theirs, NOW, policy)


@pytest.mark.parametrize(
    ("component", "flag", "value"),
    [
        # Writes to a file of the host, with text of the tenant in it.
        ("etcd", "log-outputs", "../../../../../../.bashrc"),
        ("etcd", "wal-dir", "/var/wal"),
        ("etcd", "discovery", "https://example.com"),
        ("etcd", "listen-client-http-urls", "http://0.0.0.0:80"),
        ("apiServer", "audit-log-path", "/etc/cron.d/shoal"),
        ("apiServer", "log-file", "/var/log/shoal"),
        # Truncates a file.
        ("scheduler", "write-config-to", f"{NEIGHBOUR}/admin.pem"),
        # Deletes a file.
        ("apiServer", "debug-socket-path", f"{NEIGHBOUR}/../owner.json"),
        # Shows files of the host.
        ("apiServer", "enable-logs-handler", "true"),
        ("apiServer", "token-auth-file", "/etc/passwd"),
        # Uses the keys of a neighbour.
        ("apiServer", "tls-sni-cert-key", f"{NEIGHBOUR}/apiserver.pem,{NEIGHBOUR}/apiserver.pem"),
        ("apiServer", "kubelet-client-certificate", f"{NEIGHBOUR}/admin.pem"),
        ("apiServer", "kubelet-client-key", f"{NEIGHBOUR}/admin.pem"),
        ("apiServer", "encryption-provider-config", "kms.yaml"),
        # Makes requests in the name of the host, or runs its programs.
        ("apiServer", "authentication-token-webhook-config-file", "webhook.yaml"),
        ("apiServer", "authorization-webhook-config-file", "webhook.yaml"),
        ("apiServer", "admission-control-config-file", "admission.yaml"),
        ("apiServer", "egress-selector-config-file", "egress.yaml"),
        ("apiServer", "oidc-issuer-url", "https://169.254.169.254"),
        ("controllerManager", "master", "https://127.64.0.9:6443"),
        ("controllerManager", "flex-volume-plugin-dir", "/opt"),
        ("controllerManager", "enable-hostpath-provisioner", "true"),
        ("controllerManager", "external-cloud-volume-plugin", "aws"),
        ("controllerManager", "pv-recycler-pod-template-filepath-hostpath", "/etc/shadow"),
    ],
)
def test_a_flag_that_reaches_the_host_is_rejected(component: str, flag: str, value: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"^spec\.{component}\.extraArgs.*{flag}"):
        desired({component: {"extraArgs": {flag: value}}})


@pytest.mark.parametrize("flag", ["wal-dir", "discovery-srv", "listen-client-http-urls"])
def test_an_administrator_cannot_allow_flags_that_etcd_members_depend_on(flag: str) -> None:
    policy = Policy(extra_args=frozenset({f"etcd.{flag}"}))
    with pytest.raises(InvalidSpecError, match="is set by Capelin"):
        desired({"etcd": {"extraArgs": {flag: "x"}}}, policy=policy)


@pytest.mark.parametrize(
    ("component", "flag", "value"),
    [
        ("etcd", "quota-backend-bytes", str(2**50)),
        ("etcd", "quota-backend-bytes", "-1"),
        ("etcd", "max-wals", "0"),
        ("etcd", "snapshot-count", "many"),
        ("apiServer", "logging-format", "/etc/passwd"),
    ],
)
def test_flag_value_out_of_bounds_is_rejected(component: str, flag: str, value: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"^spec\.{component}\.extraArgs\[{flag}\]"):
        desired({component: {"extraArgs": {flag: value}}})


@pytest.mark.parametrize(
    ("component", "flag", "most"),
    [
        ("etcd", "v", None),
        ("etcd", "max-wals", 50),
        ("etcd", "max-snapshots", 50),
        ("etcd", "max-request-bytes", 16 * 2**20),
        ("etcd", "quota-backend-bytes", 16 * 2**30),
        ("etcd", "auto-compaction-retention", 10**9),
        ("apiServer", "v", 10),
        ("apiServer", "default-watch-cache-size", 10_000),
        ("apiServer", "delete-collection-workers", 100),
        ("apiServer", "max-requests-inflight", 20_000),
        ("controllerManager", "concurrent-deployment-syncs", 500),
        ("controllerManager", "kube-api-burst", 10_000),
        ("controllerManager", "terminated-pod-gc-threshold", 100_000),
        ("scheduler", "kube-api-burst", 10_000),
    ],
)
def test_numeric_flags_are_bounded(component: str, flag: str, most: int | None) -> None:
    if most is not None:
        desired({component: {"extraArgs": {flag: str(most)}}})
        with pytest.raises(InvalidSpecError, match=f"to {most}"):
            desired({component: {"extraArgs": {flag: str(most + 1)}}})
    with pytest.raises(InvalidSpecError):
        desired({component: {"extraArgs": {flag: "9" * 18}}})


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("watch-cache-sizes", "pods#999999"),
        ("shutdown-delay-duration", "9999h"),
        ("event-ttl", "9999999999h"),
        ("max-requests-inflight", "1_000"),
        ("max-requests-inflight", "+5"),
    ],
)
def test_the_bounds_of_a_number_apply_to_every_notation(flag: str, value: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.apiServer\.extraArgs"):
        desired({"apiServer": {"extraArgs": {flag: value}}})


@pytest.mark.parametrize("component", ALLOWED_ARGUMENTS)
def test_every_number_has_an_upper_bound(component: str) -> None:
    policy, version = Policy(), "v1.36.0"
    flags = [flag for flag in ALLOWED_ARGUMENTS[component] if re.fullmatch("[a-z0-9-]+", flag)]
    endless = [
        flag
        for flag in flags
        if policy.problem_of_argument(component, version, flag, "9" * 18) is None
        and policy.problem_of_argument(component, version, flag, "x") is not None
    ]
    assert endless == []


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy", "GOMEMLIMIT", "PATH"]
)
@pytest.mark.parametrize("component", ["etcd", "apiServer", "controllerManager", "scheduler"])
def test_a_variable_that_reaches_the_host_is_rejected(component: str, name: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"^spec\.{component}\.extraEnv\[{name}\]"):
        desired({component: {"extraEnv": {name: "x"}}})


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",  # noqa: S104 - refused
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "a b",
        "x\ny",
        "../..",
        "-x.example",
        "x..example",
        "https://x.example",
        "x.example:443",
        "*.example",
        "127.1",
        "2130706433",
        "x" * 64 + ".example",
    ],
)
def test_an_endpoint_with_an_invalid_host_is_rejected(host: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.controlPlaneEndpoint\.host"):
        desired({"controlPlaneEndpoint": {"host": host, "port": 6443}})
    with pytest.raises(InvalidSpecError, match=r"^Cluster spec\.controlPlaneEndpoint\.host"):
        desired({}, {"controlPlaneEndpoint": {"host": host, "port": 6443}})


@pytest.mark.parametrize("name", ["a b", "x\ny", "../..", "x.example:443", "a.*.example"])
def test_an_invalid_name_gets_no_certificate(name: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.apiServer\.certSANs"):
        desired({"apiServer": {"certSANs": [name]}})


@pytest.mark.parametrize("port", [2379, 2380, 2381, 2421, 10257, 10259, 10443, 10461])
def test_a_port_of_a_component_is_rejected(port: int) -> None:
    with pytest.raises(InvalidSpecError, match=rf"port.* {port} "):
        desired({"controlPlaneEndpoint": {"port": port}})
    with pytest.raises(InvalidSpecError, match=rf"port.* {port} "):
        desired({}, {"clusterNetwork": {"apiServerPort": port}})


@pytest.mark.parametrize("port", [443, 2378, 2422, 6443, 10442, 10462])
def test_other_ports_are_accepted(port: int) -> None:
    assert desired({"controlPlaneEndpoint": {"port": port}}).port == port


@pytest.mark.parametrize(
    "host", ["api.example.com", "192.0.2.7", "fd00::7", "127.64.0.9", "API.example"]
)
def test_valid_hosts_are_accepted(host: str) -> None:
    assert desired({"controlPlaneEndpoint": {"host": host, "port": 443}}).host == host


@pytest.mark.parametrize(
    ("component", "arguments"),
    [
        (
            "apiServer",
            {
                "feature-gates": "MutatingAdmissionPolicy=true",
                "runtime-config": "api/all=true",
                "enable-admission-plugins": "NodeRestriction,AlwaysPullImages",
                "max-requests-inflight": "800",
                "shutdown-delay-duration": "1m",
                "v": "4",
            },
        ),
        ("controllerManager", {"node-monitor-grace-period": "20s", "concurrent-gc-syncs": "5"}),
        ("scheduler", {"kube-api-qps": "100", "leader-elect-retry-period": "10s"}),
        ("etcd", {"snapshot-count": "5000", "quota-backend-bytes": str(4 * 2**30)}),
    ],
)
def test_harmless_settings_are_accepted(component: str, arguments: dict[str, str]) -> None:
    desired({component: {"extraArgs": arguments, "extraEnv": {"GOGC": "80"}}})


def test_a_config_file_of_a_component_is_rejected() -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.scheduler\.extraArgs: --config is set by"):
        desired({"scheduler": {"extraArgs": {"config": "/etc/shadow"}}})


def test_an_administrator_allows_individual_settings() -> None:
    policy = Policy(
        extra_args=read_names("kube-apiserver.audit-log-path,etcd.enable-pprof"),
        extra_env=read_names("kube-apiserver.HTTPS_PROXY"),
    )
    spec = {
        "apiServer": {
            "extraArgs": {"audit-log-path": "-"},
            "extraEnv": {"HTTPS_PROXY": "http://proxy:3128"},
        },
        "etcd": {"extraArgs": {"enable-pprof": "true"}},
    }
    assert desired(spec, policy=policy).settings["kube-apiserver"].arguments
    with pytest.raises(InvalidSpecError, match=r"--allow-extra-args=etcd\.enable-pprof"):
        desired(spec)
    with pytest.raises(InvalidSpecError, match=r"--allow-extra-env=etcd\.HTTPS_PROXY"):
        desired({"etcd": {"extraEnv": {"HTTPS_PROXY": "x"}}}, policy=policy)


@pytest.mark.parametrize("option", ["audit-log-path", "shoal.v", "etcd."])
def test_an_option_without_a_setting_is_rejected(option: str) -> None:
    with pytest.raises(ValueError, match="does not name a setting"):
        read_names(option)


@pytest.mark.parametrize("option", ["0.0.0.0/0", "127.0.0.0/8", "127.64.0.0/10", "::/0", "shoal"])
def test_an_option_that_allows_loopback_addresses_is_rejected(option: str) -> None:
    with pytest.raises(ValueError, match=r"loopback|not appear to be"):
        read_networks(option)


def test_a_flag_that_the_version_lacks_is_rejected() -> None:
    spec = {"apiServer": {"extraArgs": {"emulation-forward-compatible": "true"}}}
    desired(spec)
    with pytest.raises(InvalidSpecError, match="does not have the flag"):
        desired({**spec, "version": "v1.33.13"})


def test_the_ports_of_components_are_known() -> None:
    ports = {
        *(port for index in range(5) for port in (etcd_port(index), etcd_metrics_port(index))),
        *(etcd_port(index) + 1 for index in range(5)),
        *CONTROLLER_PORTS.values(),
        *(api_server_port(index) for index in range(2 * 9 + 1)),
    }
    assert ports == COMPONENT_PORTS
