"""A pytest plugin that runs files, and the tests of each file, in a random order.

pytest -p tests.shuffle --order-seed=7
"""

from random import Random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the seed."""
    parser.addoption("--order-seed", type=int, required=True, help="The seed of the order.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Change the order. All workers of a run collect the same order."""
    random = Random(config.getoption("order_seed"))  # noqa: S311
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(str(item.path), []).append(item)
    files = sorted(by_file)
    random.shuffle(files)
    for file in files:
        random.shuffle(by_file[file])
    items[:] = [item for file in files for item in by_file[file]]
