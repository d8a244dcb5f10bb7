"""Bootstrap data as the kubeadm bootstrap provider v1.14.2 writes them."""

import base64
import gzip
from typing import Any

import pytest
from capelin.yaml import write_yaml
from capelin_machine_pool.bootstrap import (
    CloudConfig,
    CloudConfigError,
    File,
    User,
    instance_metadata,
    read_cloud_config,
)

JOIN = """\
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration:
  kubeletExtraArgs:
  - name: provider-id
    value: shoal:///{{ ds.meta_data.local_hostname }}
"""
COMMAND = (
    "kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  "
    "&& echo success > /run/cluster-api/bootstrap-success.complete"
)
DATA = f"""\
## template: jinja
#cloud-config

write_files:
-   path: /run/kubeadm/kubeadm-join-config.yaml
    owner: root:root
    permissions: '0640'
    content: |
{"".join(f"      {line}" for line in JOIN.splitlines(keepends=True))}
-   path: /run/cluster-api/placeholder
    owner: root:root
    permissions: '0640'
    content: "A placeholder"
runcmd:
  - {COMMAND}
"""
METADATA = instance_metadata(hostname="shoal-1", instance_id="1", provider_id="capelin:///shoal-1")


def read(document: dict[str, Any]) -> CloudConfig:
    return read_cloud_config(f"#cloud-config\n{write_yaml(document)}".encode(), METADATA)


def test_cloud_config_is_parsed_for_one_machine() -> None:
    join = JOIN.replace("{{ ds.meta_data.local_hostname }}", "shoal-1")
    path = "/run/kubeadm/kubeadm-join-config.yaml"
    assert read_cloud_config(DATA.encode(), METADATA) == CloudConfig(
        files=(
            File(path=path, mode=0o640, content=join.encode()),
            File(path="/run/cluster-api/placeholder", mode=0o640, content=b"A placeholder"),
        ),
        commands=(COMMAND,),
    )


@pytest.mark.parametrize(
    ("registration", "checks"),
    [
        ("{ignorePreflightErrors: [Swap, CRI]}", ("Swap", "CRI")),
        ("{ignorePreflightErrors: [Swap, '$(reboot)', []]}", ("Swap",)),
        ("{ignorePreflightErrors: all}", ()),
        ("[]", ()),
        ("{a: &anchor 1}", ()),
    ],
)
def test_ignored_preflight_errors(registration: str, checks: tuple[str, ...]) -> None:
    join = f"kind: JoinConfiguration\nnodeRegistration: {registration}\n"
    file = File(path="/run/kubeadm/kubeadm-join-config.yaml", content=join.encode())
    assert CloudConfig(files=(file,)).ignored_preflight_errors == checks


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("b64", base64.b64encode(b"\0text")),
        ("base64", base64.encodebytes(b"\0text")),
        ("gz+b64", base64.b64encode(gzip.compress(b"\0text", mtime=0))),
        ("gzip+base64", base64.b64encode(gzip.compress(b"\0text", mtime=0))),
    ],
)
def test_encoded_content_is_decoded(encoding: str, content: bytes) -> None:
    file = {"path": "/a", "encoding": encoding, "content": content.decode(), "append": True}
    expected = File(path="/a", content=b"\0text", append=True)
    assert read({"write_files": [file]}).files == (expected,)


@pytest.mark.parametrize("permissions", ["0600", "600", "0o600", 0o600])
def test_permissions_are_octal(permissions: str | int) -> None:
    config = read({"write_files": [{"path": "/a", "permissions": permissions}]})
    assert config.files[0].mode == 0o600


def test_commands_are_lines_of_a_script() -> None:
    config = read({"bootcmd": [["echo", "a b", 1]], "runcmd": ["cd /tmp && ls", ["touch", "it's"]]})
    assert config.boot_commands == ("echo 'a b' 1",)
    assert config.commands == ("cd /tmp && ls", """touch 'it'"'"'s'""")


def test_users_and_time_servers_are_read() -> None:
    user = {
        "name": "shoal",
        "groups": "school, sea",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": ["ssh-ed25519 AAAA"],
        "lock_passwd": False,
        "passwd": "$6$salt$hash",
    }
    config = read({"users": ["default", user], "ntp": {"enabled": True, "servers": ["a.example"]}})
    assert config.ntp_servers == ("a.example",)
    assert config.users == (
        User(
            name="shoal",
            groups=("school", "sea"),
            sudo="ALL=(ALL) NOPASSWD:ALL",
            ssh_authorized_keys=("ssh-ed25519 AAAA",),
            lock_password=False,
            password_hash="$6$salt$hash",
        ),
    )


def test_text_without_template_header_is_not_a_template() -> None:
    config = read({"write_files": [{"path": "/a", "content": "{{ .Go }}"}]})
    assert config.files[0].content == b"{{ .Go }}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"ignition": {"version": "3.1.0"}}', "Ignition is not supported"),
        ("#!/bin/sh\nls\n", "do not begin with #cloud-config"),
        (DATA.replace("local_hostname", "public_key"), "unknown template expression"),
        (DATA + "# {% if x %}", "template statements"),
        (DATA + "packages: [etcd]\n", "unsupported 'packages'"),
        (DATA + "disk_setup: {}\n", "disk_setup is not supported: Capelin formats"),
        (DATA.replace("    owner: root:root\n", "    defer: true\n"), "unsupported 'defer'"),
        (DATA.replace(COMMAND, "{kubeadm: join}"), r"runcmd\[0\] is neither a string nor a list"),
        (DATA.replace("'0640'", "rw"), r"write_files\[0\].permissions are not octal"),
        (DATA.replace("/run/kubeadm/", "/run/../"), "is not an absolute path"),
        (DATA.replace("root:root", "root;ls"), "owner is not user:group"),
        (DATA + "a: &a [1]\nb: *a\n", "not YAML"),
        (DATA + "users: [{name: root}]\n", r"users\[0\].name is not"),
        (DATA + "ntp: {servers: [-x]}\n", "ntp.servers has an entry"),
        ("#cloud-config\n" + "[" * 20_000, "not YAML"),
    ],
)
def test_unsupported_cloud_config_is_rejected(data: str, message: str) -> None:
    with pytest.raises(CloudConfigError, match=message):
        read_cloud_config(data.encode(), METADATA)


def test_sizes_are_bounded() -> None:
    with pytest.raises(CloudConfigError, match="larger than"):
        read_cloud_config(b"#cloud-config\n" + b"#" * (1 << 20), METADATA)
    bomb = base64.b64encode(gzip.compress(bytes(17 << 20))).decode()
    with pytest.raises(CloudConfigError, match="is larger than"):
        read({"write_files": [{"path": "/a", "encoding": "gz+b64", "content": bomb}]})


@pytest.mark.parametrize(
    "content", ["!", base64.b64encode(gzip.compress(b"text", mtime=0)[:-4]).decode()]
)
def test_broken_content_is_rejected(content: str) -> None:
    with pytest.raises(CloudConfigError, match=r"write_files\[0\]"):
        read({"write_files": [{"path": "/a", "encoding": "gz+b64", "content": content}]})
