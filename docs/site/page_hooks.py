"""Hooks of MkDocs: the version in the footer, the rank of a page in the search, and edit links."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

DECISIONS: Final = "docs/decisions/0"
GENERATED: Final = "docs/reference/"
GUIDES: Final = ("docs/how-to/", "docs/tutorials/", "docs/status.md")
AUTHORS: Final = ("docs/how-to/ship.md", "docs/how-to/users.md")
"""Guides for authors of providers. Words such as Helm belong to the guides of operators first."""
GUIDE_BOOST: Final = 4


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Show the version in the footer, and edit links if the repository has an address."""
    config.edit_uri = "edit/main/" if config.repo_url else None
    config.copyright = f"Capelin {version('capelin-core')}, alpha. Licence: Apache-2.0."
    return config


def on_page_markdown(markdown: str, *, page: "Page", **_: Any) -> str:
    """Rank guides first, leave decisions out of the search, and edit no generated page."""
    path = page.file.src_uri
    if path.startswith(DECISIONS):
        page.meta["search"] = {"exclude": True}
    elif path.startswith(GUIDES) and path not in AUTHORS:
        page.meta["search"] = {"boost": GUIDE_BOOST}
    if path.startswith(GENERATED):
        page.edit_url = None
    return markdown
