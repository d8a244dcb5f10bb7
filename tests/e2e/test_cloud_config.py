"""Bootstrap data of a joining machine, from the kubeadm bootstrap provider v1.14.0."""

import pytest

from .cloud_config import CloudConfig, CloudConfigError, File, read_cloud_config

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


def test_cloud_config_is_parsed_for_one_machine() -> None:
    join = JOIN.replace("{{ ds.meta_data.local_hostname }}", "shoal-1")
    assert read_cloud_config(DATA.encode(), "shoal-1") == CloudConfig(
        files=(
            File("/run/kubeadm/kubeadm-join-config.yaml", "root:root", "0640", join),
            File("/run/cluster-api/placeholder", "root:root", "0640", "A placeholder"),
        ),
        commands=(COMMAND,),
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (DATA.replace("## template: jinja\n", ""), "does not begin"),
        (DATA.replace("local_hostname", "instance_id"), "templates other than"),
        (DATA + "{% if x %}", "templates other than"),
        (DATA + "ntp: {}\n", "ntp"),
        (DATA.replace("    owner: root:root\n", "    append: true\n"), "append"),
        (DATA.replace(COMMAND, "[kubeadm, join]"), "is a list"),
    ],
)
def test_unsupported_cloud_config_is_rejected(changed: str, message: str) -> None:
    with pytest.raises(CloudConfigError, match=message):
        read_cloud_config(changed.encode(), "shoal-1")
