"""Lay out the pages of the site: those of the tree where they are, and generated ones.

Pages keep their places, so that links between them, and to files, work here and in the tree. Usage:
python docs/site/assemble.py FOLDER
"""

import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import Final

from diagrams import draw
from reference import pages

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "RELEASING.md",
    "CODE_OF_CONDUCT.md",
    "docs/**/*.md",
    "core/README.md",
    "embedded/README.md",
    "cli/README.md",
    "tools/*/README.md",
    "providers/*/README.md",
    "extensions/*/README.md",
    "examples/*/README.md",
    "charts/**/README.md",
    "clusterctl/README.md",
)
ASSETS: Final = tuple(map(Path(__file__).with_name, ("site.css", "iframe-worker.js")))
_LINK: Final = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def links(text: str) -> list[str]:
    """The files that a page links to, as it names them."""
    return [match[1] for match in _LINK.finditer(text)]


def assemble(folder: Path) -> None:
    """Fill an empty folder with everything that the site consists of."""
    copied: set[Path] = set()
    for pattern in PAGES:
        copied.update(path.relative_to(ROOT) for path in ROOT.glob(pattern))
    for page in sorted(copied):
        text, pictures = draw(PurePosixPath(page), (ROOT / page).read_text())
        for path, picture in {PurePosixPath(page): text, **pictures}.items():
            _write(folder / path, picture)
        for link in links(text):
            target = (ROOT / page).parent / link
            if target.is_file() and target.suffix != ".md":
                # Files that a page shows or points to: pictures, examples, settings.
                copy = folder / target.resolve().relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, copy)
    for made in pages():
        _write(folder / made.path, made.text)
    for asset in ASSETS:
        shutil.copyfile(asset, folder / asset.name)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    destination = Path(sys.argv[1])
    shutil.rmtree(destination, ignore_errors=True)
    assemble(destination)
