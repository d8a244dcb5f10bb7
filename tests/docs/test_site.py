"""The site contains its diagrams, and its pages load nothing from other hosts."""

import re
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from docs.site.dashboard import TEMPLATE, evaluate, panels, parse
from docs.site.diagrams import draw, sized
from docs.site.external_loads import all_external_loads, external_loads
from docs.site.page_hooks import on_page_markdown

ROOT = Path(__file__).parents[2]
PAGE = """# Levels

```mermaid
flowchart TB
  a --> b
```

## Below

```mermaid
flowchart LR
  b --> c
```
"""


def test_each_diagram_becomes_a_picture_in_the_folder_of_its_page() -> None:
    text, pictures = draw(PurePosixPath("docs/levels.md"), PAGE, lambda diagram: diagram)
    assert pictures == {
        PurePosixPath("docs/levels-1.svg"): "flowchart TB\n  a --> b\n",
        PurePosixPath("docs/levels-2.svg"): "flowchart LR\n  b --> c\n",
    }
    assert "mermaid" not in text
    assert "[![Levels](levels-1.svg){ .diagram }](levels-1.svg)" in text
    assert "[![Below](levels-2.svg){ .diagram }](levels-2.svg)" in text


def test_a_page_without_diagrams_is_unchanged() -> None:
    assert draw(PurePosixPath("a.md"), "# A\n\ntext\n") == ("# A\n\ntext\n", {})


def test_a_diagram_has_an_explicit_width() -> None:
    drawn = '<svg id="a" width="100%" style="max-width:69.1px" viewBox="4 4 69.14 92.8"><g/></svg>'
    assert sized(drawn) == drawn.replace("100%", "52")
    with pytest.raises(ValueError, match="no view box"):
        sized("<svg></svg>")


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://unpkg.com/mermaid"></script>',
        '<script src="//unpkg.com/mermaid"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="http://badges.example/a.svg">',
        '<img srcset="https://badges.example/a.svg 2x">',
        '<iframe src="https://video.example"></iframe>',
        "<style>@import 'https://fonts.example/css';</style>",
        "<style>a { background: url(https://pictures.example/a.png) }</style>",
        '<p style="background: url(https://pictures.example/a.png)"></p>',
        '<pre class="mermaid"><code>flowchart</code></pre>',
    ],
)
def test_a_load_from_another_host_is_reported(text: str) -> None:
    assert len(external_loads(text, ".html")) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://cluster-api.sigs.k8s.io">Cluster API</a>',
        '<link rel="canonical" href="https://capelin.example/">',
        '<script src="assets/bundle.js"></script>',
        '<img src="docs/images/up.svg">',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    ],
)
def test_links_and_local_files_are_not_external_loads(text: str) -> None:
    assert external_loads(text, ".html") == []


def test_every_html_and_css_file_of_the_site_is_checked(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<p>Capelin</p>")
    (tmp_path / "assets" / "site.css").write_text("a { src: url('https://fonts.example/a.woff') }")
    assert list(all_external_loads(tmp_path)) == ["assets/site.css: https://fonts.example/a.woff"]


def page_of(path: str) -> Any:
    """A page of the site with an edit link."""
    return SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={}, edit_url="https://edit")


@pytest.mark.parametrize(
    ("path", "search"),
    [
        ("docs/how-to/install.md", {"boost": 4}),
        ("docs/decisions/0027-no-staged-ca-rotation-yet.md", {"exclude": True}),
        ("docs/decisions/README.md", None),
        ("docs/figures.md", None),
    ],
)
def test_search_ranks_guides_first_and_omits_decisions(path: str, search: object) -> None:
    page = page_of(path)
    assert on_page_markdown("text", page=page) == "text"
    assert page.meta.get("search") == search


@pytest.mark.parametrize(
    ("path", "edit_url"),
    [("docs/reference/commands.md", None), ("docs/status.md", "https://edit")],
)
def test_generated_pages_have_no_edit_link(path: str, edit_url: str | None) -> None:
    page = page_of(path)
    on_page_markdown("text", page=page)
    assert page.edit_url == edit_url


def test_terminal_pictures_have_the_same_font_size() -> None:
    """Browsers stretch a picture without a width to the width of the page."""
    pictures = sorted((ROOT / "docs" / "images" / "tour").glob("*.svg"))
    assert pictures
    for picture in pictures:
        size = re.search(r'viewBox="0 0 (\S+) \S+" width="(\d+)"', picture.read_text())
        assert size is not None, picture.name
        assert float(size[2]) / float(size[1]) == pytest.approx(0.6, abs=0.01), picture.name


def test_pictures_show_commands_of_the_tutorial() -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "operator.md").read_text()
    lines = [line.partition("#")[0].strip() for line in tutorial.splitlines()]
    typed = {line.removeprefix("uv run ") for line in lines}
    pictures = sorted((ROOT / "docs" / "images" / "tour").glob("*.svg"))
    for picture in pictures:
        title = re.search(r'-title"[^>]*>([^<]*)', picture.read_text())
        assert title is not None, picture.name
        assert title[1].replace("&#160;", " ").strip() in typed, picture.name
    assert {picture.name for picture in pictures} == set(re.findall(r"tour/(.+\.svg)", tutorial))


def test_the_picture_of_the_dashboard_has_every_panel_of_the_chart() -> None:
    template = TEMPLATE.read_text()
    titles = [panel.title for panel in panels(template)]
    assert titles == re.findall(r"- title: (.+)", template)
    picture = (ROOT / "docs" / "images" / "dashboard.svg").read_text()
    assert re.findall(r'class="title"[^>]*>([^<]+)', picture) == titles


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sum by (name) (requests_total{JOB})", 30.0),
        ("sum by (name) (rate(requests_total{JOB}[5m]))", 2.0),
        ("histogram_quantile(0.99, sum by (name, le) (rate(seconds_bucket{JOB}[5m])))", 0.99),
    ],
)
def test_a_panel_is_evaluated_as_prometheus_does(query: str, expected: float) -> None:
    scrape = (
        'requests_total{{name="a",code="200"}} {0}\nrequests_total{{name="a",code="500"}} {0}\n'
        'seconds_bucket{{name="a",le="1"}} {1}\nseconds_bucket{{name="a",le="+Inf"}} {1}\n'
    )
    (panel,) = panels(f"- title: A\n  expr: {query}\n")
    lines = evaluate(panel, {0.0: parse(scrape.format(5, 0)), 10.0: parse(scrape.format(15, 7))})
    assert lines["a"][-1] == (10.0, pytest.approx(expected))
