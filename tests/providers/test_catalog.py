"""The documents show the results of the checks that exist, with the versions of the providers."""

from .catalog import FOLDER, PROVIDERS, SHOWN, read_results, table


def test_page_has_the_results_of_all_checks() -> None:
    assert SHOWN.read() == table(read_results())


def test_results_belong_to_checks() -> None:
    assert {title: [*results] for title, results in read_results().items()} == {
        provider.title: [check.command for check in provider.checks] for provider in PROVIDERS
    }


def test_checks_use_every_sample() -> None:
    used = {check.samples for provider in PROVIDERS for check in provider.checks if check.samples}
    assert used == {file.name for file in (FOLDER / "samples").iterdir()}
