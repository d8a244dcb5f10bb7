"""Expressions: Kubernetes' functions, errors for people, and bounds."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin_lifecycle.sandbox.expressions import (
    VARIABLE_TYPES,
    ExpressionError,
    as_amount,
    compile_expression,
)

OBJECT: dict[str, Any] = {
    "metadata": {"name": "team-a", "labels": {"tier": "prod"}},
    "memory": "1Gi",
    "version": "v1.34.4",
    "address": "10.0.0.1",
    "pools": [{"name": "a", "replicas": 3}, {"name": "b", "replicas": 4}],
}


def value(text: str) -> Any:
    return compile_expression(text, ("object",), boolean=False).evaluate({"object": OBJECT})


@pytest.mark.parametrize(
    "text",
    [
        "object.metadata.labels.tier in ['prod', 'dev']",
        "object.pools.all(pool, pool.replicas <= 4)",
        "object.pools.map(pool, pool.replicas).sum() == 7",
        "has(object.memory) && !has(object.disk)",
        "object.?disk.orValue('none') == 'none'",
        "quantity(object.memory).isGreaterThan(quantity('500Mi'))",
        "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0",
        "isQuantity('2Gi') && !isQuantity('many')",
        "semver(object.version, true).minor() == 34",
        "semver('1.2.3').isLessThan(semver('1.10.0'))",
        "isSemver('1.2.3') && !isSemver('v1.2.3') && isSemver('v1.2', true)",
        "ip(object.address).family() == 4 && isIP('::1') && !isIP('1.2.3')",
        "cidr('10.0.0.0/8').containsIP(object.address)",
        "!cidr('10.0.0.0/8').containsIP(ip('192.168.0.1'))",
        "'A,b'.lowerAscii().split(',') == ['a', 'b']",
        "['a', 'b'].join('-').replace('-', '+') == 'a+b'",
    ],
)
def test_expressions_have_the_functions_of_kubernetes(text: str) -> None:
    assert compile_expression(text, ("object",), boolean=True).is_true({"object": OBJECT})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("object.", "Syntax error"),
        ("nothing == 1", "undeclared reference to 'nothing'"),
        ("1", "INT instead of true or false"),
        ("1 + 'a' == 2", "no matching overload"),
    ],
)
def test_an_expression_that_does_not_compile_reports_the_reason(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        compile_expression(text, ("object",), boolean=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("object.disk", 'Key not found in map : "disk"'),
        ("quantity('many')", "'many' is not a quantity"),
        ("semver(object.version)", r"use semver\('v1.34.4', true\)"),
        ("1 / 0", "divide by zero"),
    ],
)
def test_an_expression_without_a_value_reports_the_reason(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        value(text)


def test_every_macro_of_cel_compiles() -> None:
    for macro in ("exists", "exists_one", "all"):
        compile_expression(f"[1, 2].{macro}(x, x > 1)", ("object",), boolean=True)
    for macro in ("map", "filter"):
        compile_expression(f"size([1, 2].{macro}(x, x > 1)) > 0", ("object",), boolean=True)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("now", "now < timestamp('2026-12-20T00:00:00Z')"),
        ("now", "now.getFullYear() == 2026 && now - duration('1h') < now"),
        ("fromVersion", "semver(fromVersion, true).minor() == 33"),
        ("toVersion", "toVersion.startsWith('v1.34.')"),
        ("object", "object.metadata.name == 'team-a' && has(object.pools)"),
        ("templates", "templates.all(t, t.object.kind == 'K')"),
        ("variables", "'proxy' in variables && variables.proxy == 'p'"),
    ],
)
def test_every_variable_has_its_type(variable: str, text: str) -> None:
    values: dict[str, Any] = {
        "now": datetime(2026, 11, 23, tzinfo=UTC),
        "fromVersion": "v1.33.13",
        "toVersion": "v1.34.4",
        "object": OBJECT,
        "templates": [{"object": {"kind": "K"}}],
        "variables": {"proxy": "p"},
    }
    assert values.keys() == VARIABLE_TYPES.keys()
    expression = compile_expression(text, (variable,), boolean=True)
    assert expression.is_true({variable: values[variable]})


@pytest.mark.parametrize("variable", ["now", "fromVersion", "toVersion", "templates", "variables"])
def test_a_variable_of_another_type_is_rejected_in_a_new_policy(variable: str) -> None:
    with pytest.raises(ExpressionError, match="no matching overload"):
        compile_expression(f"{variable} == 1", (variable,), boolean=True)


@pytest.mark.parametrize(
    "text",
    [
        "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))",
        "object.l.map(a, object.l.map(b, object.l)).size() > 0",
    ],
)
def test_no_expression_takes_long(text: str) -> None:
    expression = compile_expression(text, ("object",), boolean=True)
    start = time.process_time()
    with pytest.raises(ExpressionError):
        expression.is_true({"object": {"l": list(range(300))}})
    assert time.process_time() - start < 1


def test_amounts_are_numbers_or_quantities() -> None:
    assert as_amount(value("quantity('1.5Ki')")) == 1536
    assert as_amount(value("'500m'")) == as_amount(value("0.5"))
    for text in ("true", "[1]", "'many'"):
        with pytest.raises(ExpressionError):
            as_amount(value(text))
