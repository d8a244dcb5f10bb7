from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.flags import OptionsError, parse
from capelin.runtime.server.cli import (
    AnonymousClientsError,
    Options,
    cert_dir_of,
    host_of,
    read_options,
)

DEFAULTS = Options()


def options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    return parse(Options, "guard", "", arguments, environment)


def test_the_default_folder_of_certificates_is_private() -> None:
    assert options([], {}) == DEFAULTS
    private = Path("/home/me/.config/capelin/guard")
    assert cert_dir_of(DEFAULTS, "guard", {"HOME": "/home/me"}) == private
    folder = cert_dir_of(DEFAULTS, "guard", {"XDG_CONFIG_HOME": "/config"})
    assert folder == Path("/config/capelin/guard")


def test_every_option_is_a_flag() -> None:
    flags = (
        "--host=127.0.0.1 --port=1 --probes-port=2 --cert-dir=/certs --client-ca=/ca.crt"
        " --drain-seconds=0.5 --log-level=debug --metrics-token-file=/token"
    )
    assert options(flags.split(), {}) == Options(
        host="127.0.0.1",
        port=1,
        probes_port=2,
        cert_dir=Path("/certs"),
        client_ca=Path("/ca.crt"),
        drain_seconds=0.5,
        log_level="debug",
        metrics_token_file=Path("/token"),
    )


def test_every_option_has_an_environment_variable() -> None:
    environment = {
        "CAPELIN_HOST": "127.0.0.1",
        "CAPELIN_PORT": "1",
        "CAPELIN_PROBES_PORT": "2",
        "CAPELIN_CERT_DIR": "/certs",
        "CAPELIN_CLIENT_CA": "/ca.crt",
        "CAPELIN_DRAIN_SECONDS": "0.5",
        "CAPELIN_LOG_LEVEL": "debug",
    }
    flags = [f"--{key[8:].lower().replace('_', '-')}={value}" for key, value in environment.items()]
    assert options([], environment) == options(flags, {})


def test_the_command_line_takes_precedence_over_the_environment() -> None:
    assert options(["--port=2"], {"CAPELIN_PORT": "4"}).port == 2


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--port=70000", '"70000" is not a number from 0 to 65535'),
        ("--port=x", '"x" is not a number from 0 to 65535'),
        ("--port=-1", '"-1" is not a number from 0 to 65535'),
        ("--drain-seconds=-1", '"-1" is not a time (examples: 10h, 1m30s, 250ms)'),
        ("--drain-seconds=nan", '"nan" is not a time'),
        ("--drain-seconds=soon", '"soon" is not a time'),
        ("--drain-seconds=3601", '"3601" is longer than 3600 s'),
        ("--drain-seconds=1h1s", '"1h1s" is longer than 3600 s'),
        ("--log-level=loud", '"loud" is none of debug, info, warning, error'),
        ("--colour=red", "unrecognized arguments: --colour=red"),
    ],
)
def test_invalid_options_fail(flag: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(Options, "guard", [flag])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


def test_environment_variables_are_checked() -> None:
    with pytest.raises(OptionsError, match='CAPELIN_PORT: "many" is not a number from 0 to 65535'):
        options([], {"CAPELIN_PORT": "many"})


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        options(["--help"], {})
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for name in ("host", "port", "probes-port", "cert-dir", "client-ca", "metrics-token-file"):
        assert f"--{name}" in shown
    assert "CAPELIN_CERT_DIR" in shown


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.5", "127.0.0.5"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_without_a_client_ca_only_loopback_addresses_are_served(host: str, address: str) -> None:
    assert host_of(replace(DEFAULTS, host=host)) == address


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "::", "10.0.0.1", "extension.example.com"),  # noqa: S104
        # Mapped, 6to4 and NAT64 forms of 10.0.0.1, 0.0.0.0 and 127.0.0.1
        *("::ffff:10.0.0.1", "::ffff:0.0.0.0", "2002:7f00:1::", "64:ff9b::7f00:1"),
    ],
)
def test_other_addresses_need_a_client_ca(host: str) -> None:
    with pytest.raises(AnonymousClientsError, match="Set --client-ca"):
        host_of(replace(DEFAULTS, host=host))
    assert host_of(replace(DEFAULTS, host=host, client_ca=Path("ca.crt"))) == host
    assert host_of(replace(DEFAULTS, host="", client_ca=Path("ca.crt"))) == ""
    assert host_of(options([f"--host={host}", "--allow-any-client"], {})) == host
    assert host_of(options([f"--host={host}"], {"CAPELIN_ALLOW_ANY_CLIENT": "true"})) == host
