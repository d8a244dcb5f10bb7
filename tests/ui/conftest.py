"""Fixtures of the tests in a browser."""

from collections.abc import AsyncGenerator

import pytest
from playwright.async_api import Browser

from .browser import chromium


@pytest.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """Chromium, for all tests."""
    async with chromium() as browser:
        yield browser
