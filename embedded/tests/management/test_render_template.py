"""Substitution of variables in templates."""

import pytest
from capelin_embedded.management.providers import SubstitutionError, substitute


@pytest.mark.parametrize(
    ("template", "variables", "result"),
    [
        ("name: ${NAME}", {"NAME": "demo"}, "name: demo"),
        ("name: ${ NAME }", {"NAME": "demo"}, "name: demo"),
        ("${A}${B}", {"A": "1", "B": "2"}, "12"),
        ("gate=${GATE:=false}", {}, "gate=false"),
        ("gate=${GATE:=false}", {"GATE": "true"}, "gate=true"),
        ("gate=${GATE:=false}", {"GATE": ""}, "gate=false"),
        ("address=${ADDRESS:=:8443}", {}, "address=:8443"),
        ('host: ${HOST:=""}', {}, 'host: ""'),
        ('cidrs: ${CIDRS:=["10.0.0.0/8"]}', {}, 'cidrs: ["10.0.0.0/8"]'),
        ("${A-x} ${A:-y} ${A=z}", {}, "x y z"),
        ("${A:-${B}}", {"B": "b"}, "b"),
        ("${A:-${B}}", {"A": "a"}, "a"),
        ("${A:=x-${B:=${C}}-z}.", {"C": "c"}, "x-c-z."),
        ("${EMPTY}", {"EMPTY": ""}, ""),
        ("shell: $${HOME} and $HOME", {}, "shell: ${HOME} and $HOME"),
        ("pid: $$$$", {}, "pid: $$"),
    ],
)
def test_substitute_supports_the_expressions_of_clusterctl(
    template: str, variables: dict[str, str], result: str
) -> None:
    assert substitute(template, variables) == result


def test_one_error_names_all_missing_variables() -> None:
    with pytest.raises(SubstitutionError, match=r"needs values for NAME, NAMESPACE$"):
        substitute("${NAMESPACE}/${OTHER:=${NAME}}: ${PORT:=1}", {})


@pytest.mark.parametrize(
    "expression", ["${A^^}", "${A:0:3}", "${#A}", "${A", "${A/x/y}", "${B:=${C"]
)
def test_substitute_rejects_unsupported_expressions(expression: str) -> None:
    with pytest.raises(SubstitutionError, match="is not supported"):
        substitute(expression, {"A": "value"})
