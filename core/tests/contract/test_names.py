import pytest
from capelin.contract import names
from capelin.contract.names import label_value
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        # As Cluster API's own function has them.
        ("CapelinControlPlane", "capelincontrolplanes"),
        ("CapelinControlPlaneTemplate", "capelincontrolplanetemplates"),
        ("CapelinMachinePool", "capelinmachinepools"),
        ("CapelinMachine", "capelinmachines"),
        ("CapelinCluster", "capelinclusters"),
        ("CapelinClusterTemplate", "capelinclustertemplates"),
        ("CapelinHost", "capelinhosts"),
        ("KubeadmConfig", "kubeadmconfigs"),
        ("ClusterClass", "clusterclasses"),
        ("FooProxy", "fooproxies"),
        ("FooGateway", "foogateways"),
        ("FooIdentity", "fooidentities"),
        ("FooBox", "fooboxes"),
        ("FooBranch", "foobranches"),
        ("FooMesh", "foomeshes"),
        ("FooStatus", "foostatuses"),
    ],
)
def test_crds_are_named_as_core_looks_for_them(kind: str, plural: str) -> None:
    assert names.crd_name("infrastructure.cluster.x-k8s.io", kind) == (
        f"{plural}.infrastructure.cluster.x-k8s.io"
    )


def test_templates_and_what_is_made_from_them_name_each_other() -> None:
    assert names.template_of("CapelinMachine") == "CapelinMachineTemplate"
    assert names.made_from("CapelinMachineTemplate") == "CapelinMachine"


@pytest.mark.parametrize("kind", ["CapelinMachine", "Template", "TemplateX"])
def test_what_is_no_template_makes_nothing(kind: str) -> None:
    with pytest.raises(ValueError, match=f"^{kind} is not the kind of a template"):
        names.made_from(kind)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", ""),
        ("pool-0", "pool-0"),
        ("a.b_C-1", "a.b_C-1"),
        ("a" * 63, "a" * 63),
        # As Cluster API's own function has them.
        ("a" * 64, "hash_2W8PhQ_z"),
        ("invalid/name", "hash_NYbuzg_z"),
        ("-x", "hash_S81gwA_z"),
    ],
)
def test_a_name_becomes_the_label_that_core_looks_for(name: str, expected: str) -> None:
    assert label_value(name) == expected


@given(st.text())
def test_every_name_becomes_a_label(name: str) -> None:
    value = label_value(name)
    assert len(value) <= 63
    assert label_value(value) == value


@pytest.mark.parametrize(
    ("type_", "label", "file"),
    [
        ("CoreProvider", "capelin", "core-components.yaml"),
        ("BootstrapProvider", "bootstrap-capelin", "bootstrap-components.yaml"),
        ("ControlPlaneProvider", "control-plane-capelin", "control-plane-components.yaml"),
        ("InfrastructureProvider", "infrastructure-capelin", "infrastructure-components.yaml"),
        ("IPAMProvider", "ipam-capelin", "ipam-components.yaml"),
        (
            "RuntimeExtensionProvider",
            "runtime-extension-capelin",
            "runtime-extension-components.yaml",
        ),
        ("AddonProvider", "addon-capelin", "addon-components.yaml"),
    ],
)
def test_providers_are_called_as_clusterctl_calls_them(
    type_: names.ProviderType, label: str, file: str
) -> None:
    assert names.provider_label(type_, "capelin") == label
    assert names.components_file(type_) == file
