from dataclasses import dataclass
from pathlib import Path

import pytest
from capelin.controller import Address, Options, OptionsError, flag
from capelin.flags import parse, seconds, whole_number


def options(*arguments: str, **environ: str) -> Options:
    return parse(Options, "capelin-test", "Tests.", arguments, environ)


def test_options_have_their_defaults_without_arguments() -> None:
    assert options() == Options()


def test_every_option_is_a_flag() -> None:
    read = options(
        *("--namespace", "sea", "--watch-filter=blue", "--kubeconfig", "a/b", "--leader-elect"),
        *("--leader-elect-namespace=ns", "--leader-elect-lease-duration=30s"),
        *("--leader-elect-renew-deadline", "20s", "--leader-elect-retry-period", "4s"),
        *("--concurrency", "3", "--sync-period=1h30m", "--metrics-address", "127.0.0.1:1"),
        *("--health-address", "0", "--grace-period", "250ms", "--log-format", "json", "-vv"),
    )
    assert read == Options(
        namespace="sea",
        watch_filter="blue",
        kubeconfig=Path("a/b"),
        leader_elect=True,
        leader_elect_namespace="ns",
        leader_elect_lease_duration=30,
        leader_elect_renew_deadline=20,
        leader_elect_retry_period=4,
        concurrency=3,
        sync_period=5400,
        metrics_address=Address("127.0.0.1", 1),
        health_address=None,
        grace_period=0.25,
        log_format="json",
        verbosity=2,
    )


def test_every_option_is_an_environment_variable() -> None:
    read = options(
        CAPELIN_NAMESPACE="sea",
        CAPELIN_LEADER_ELECT="true",
        CAPELIN_SYNC_PERIOD="10m",
        CAPELIN_HEALTH_ADDRESS="[::1]:9",
        CAPELIN_VERBOSITY="1",
        CAPELIN_WATCH_FILTER="",
    )
    assert read == Options(
        namespace="sea",
        leader_elect=True,
        sync_period=600,
        health_address=Address("::1", 9),
        verbosity=1,
    )


def test_the_command_line_takes_precedence_over_the_environment() -> None:
    assert options("--leader-elect=false", CAPELIN_LEADER_ELECT="true").leader_elect is False


def test_an_empty_flag_overrides_the_environment() -> None:
    read = options("--namespace=", "--watch-filter=", "--kubeconfig=", CAPELIN_NAMESPACE="sea")
    assert read == Options()
    with pytest.raises(OptionsError, match="--concurrency"):
        options("--concurrency=")


def test_one_error_lists_all_problems_with_their_source() -> None:
    with pytest.raises(OptionsError) as caught:
        options("--namespace=A", "--metrics-address=x", CAPELIN_CONCURRENCY="many")
    assert str(caught.value).splitlines() == [
        '--namespace: "A" is not a name: use lowercase letters, digits and "-", at most 63',
        'CAPELIN_CONCURRENCY: "many" is not a whole number',
        '--metrics-address: "x" is not an address: write :8080, 127.0.0.1:8080, or 0 for none',
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--concurrency=0"], "--concurrency has to be at least 1"),
        (["--sync-period=900ms"], "--sync-period has to be at least 1s"),
        (["--leader-elect-lease-duration=5s"], "has to be longer than --leader-elect-renew"),
        (["--leader-elect-renew-deadline=2s"], "1.2 times --leader-elect-retry-period"),
        (["--leader-elect-retry-period=0"], "has to be longer than 0s"),
        (["--watch-filter=a/b"], "is not a label's value"),
        (["--log-format=xml"], '"xml" is none of text, json'),
        (["--leader-elect=yes"], '"yes" is neither true nor false'),
        (["--health-address=:70000"], "is not an address"),
    ],
)
def test_invalid_options_fail(arguments: list[str], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        options(*arguments)


def test_an_unknown_flag_ends_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options("--namespac=x")
    assert caught.value.code == 2
    assert "unrecognized arguments: --namespac=x" in capsys.readouterr().err


def test_help_names_flag_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help")
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "--sync-period PERIOD How often to look at an object that did not change. "
        "Default: 10h. [CAPELIN_SYNC_PERIOD]" in output
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreOptions(Options):
    shoals: int = flag(7, whole_number, "How many shoals, 100% at most.")


def test_a_provider_adds_its_own_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(MoreOptions, "x", "X.", ["--shoals=9"], {}).shoals == 9
    with pytest.raises(SystemExit):
        parse(MoreOptions, "x", "X.", ["--help"], {})
    line = "--shoals SHOALS How many shoals, 100% at most. Default: 7. [CAPELIN_SHOALS]"
    assert line in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15", 15), ("1.5", 1.5), ("10h", 36000), ("1m30s", 90), ("250ms", 0.25), ("1h1m1s", 3661)],
)
def test_durations_have_the_format_of_kubernetes(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "h", "10 h", "-1s", "1d", "s1", "1e3"])
def test_an_invalid_duration_fails(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time \(examples: 10h"):
        seconds(text)
