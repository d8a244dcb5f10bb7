"""Draws the dashboard of a provider's chart from scrapes of its metrics.

Scrape a provider for a while (docs/how-to/monitor.md has the address):
    while sleep 5; do curl -s http://ADDRESS/metrics > "scrapes/$(date +%s)"; done
Then: python docs/site/dashboard.py SCRAPES PICTURE.svg
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

RELEASE: Final = Path(__file__).parents[2] / "tools" / "release" / "src" / "capelin_release"
TEMPLATE: Final = RELEASE / "library" / "templates" / "_manager.tpl"
COLORS: Final = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#5195ce", "#ba43a9")
WINDOW: Final = 300.0  # [5m]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 580, 230, 60, 40, 160
_STYLE: Final = (
    "rect{fill:#181b1f}text{font:11px sans-serif;fill:#9fa3a8}.title{font-weight:bold;fill:#ccd}"
    ".grid{stroke:#2c3035}polyline{fill:none;stroke-width:1.5}"
)
_PANEL: Final = re.compile(
    r"- title: (.+)\n\s+expr: (histogram_quantile\(0\.99, )?(?:sum|max) by"
    r" \(([^)]+)\) \((rate\()?(\w+)\{JOB\}"
)
Labels = tuple[tuple[str, str], ...]
Scrape = Mapping[str, Mapping[Labels, float]]
Lines = dict[str, list[tuple[float, float]]]  # times and values


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard and its query."""

    title: str
    metric: str
    labels: tuple[str, ...]
    is_rate: bool
    is_quantile: bool


def panels(template: str) -> list[Panel]:
    """The panels in the template of the chart."""
    return [
        Panel(title, metric, tuple(labels.split(", ")), bool(rate), bool(quantile))
        for title, quantile, labels, rate, metric in _PANEL.findall(template)
    ]


def parse(text: str) -> Scrape:
    values: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return values


def evaluate(panel: Panel, scrapes: Mapping[float, Scrape]) -> Lines:
    """The lines of a panel."""
    lines: Lines = defaultdict(list)
    for time, scrape in scrapes.items():
        began = min(other for other in scrapes if other >= time - WINDOW)
        if panel.is_rate and began == time:
            continue
        groups: dict[Labels, float] = defaultdict(float)
        for labels, value in scrape.get(panel.metric, {}).items():
            group = tuple(label for label in labels if label[0] in panel.labels)
            if panel.is_rate:
                earlier = scrapes[began].get(panel.metric, {}).get(labels, 0.0)
                groups[group] += (value - earlier) / (time - began)
            else:
                groups[group] += value
        for name, value in (quantiles(groups) if panel.is_quantile else groups).items():
            lines[", ".join(text for _, text in name)].append((time, value))
    return lines


def quantiles(groups: Mapping[Labels, float]) -> dict[Labels, float]:
    """The 99th percentile of each histogram that has values."""
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in groups.items():
        others = tuple(label for label in labels if label[0] != "le")
        histograms[others].append((float(dict(labels)["le"]), count))
    return {
        labels: quantile(sorted(buckets), 0.99)
        for labels, buckets in histograms.items()
        if any(count for _, count in buckets)
    }


def quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """A quantile of cumulative buckets. Values are evenly distributed within a bucket."""
    rank, lower, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= rank:
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def draw(panel: Panel, lines: Lines, span: tuple[float, float]) -> Iterator[str]:
    """A panel as SVG."""
    start, end = span
    inner = WIDTH - LEFT - 40
    top = max((value for line in lines.values() for _, value in line), default=0.0) or 1.0
    yield f'<rect width="{WIDTH - 10}" height="{HEIGHT - 10}"/>'
    yield f'<text class="title" x="12" y="24">{escape(panel.title)}</text>'
    for part in (0.0, 0.5, 1.0):
        y, x = BOTTOM - part * (BOTTOM - TOP), LEFT + part * inner
        yield f'<path class="grid" d="M{LEFT} {y:.0f}h{inner}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{top * part:.3g}</text>'
        minutes = f"{part * (end - start) / 60:.0f} min"
        yield f'<text x="{x:.0f}" y="{BOTTOM + 18}" text-anchor="middle">{minutes}</text>'
    left, row = LEFT, HEIGHT - 40
    highest = sorted(lines, key=lambda name: -max(value for _, value in lines[name]))
    for name, color in zip(highest, COLORS, strict=False):
        points = " ".join(
            f"{LEFT + inner * (time - start) / (end - start):.1f},"
            f"{BOTTOM - (BOTTOM - TOP) * value / top:.1f}"
            for time, value in lines[name]
        )
        yield f'<polyline points="{points}" stroke="{color}"/>'
        if left + 6 * len(name) > WIDTH:
            left, row = LEFT, row + 16
        yield f'<text x="{left}" y="{row}" style="fill:{color}">{escape(name)}</text>'
        left += 14 + 6 * len(name)


def main(folder: Path, picture: Path) -> None:
    """Draw all panels in two columns."""
    scrapes = {float(file.name): parse(file.read_text()) for file in sorted(folder.iterdir())}
    made = panels(TEMPLATE.read_text())
    width, height = 2 * WIDTH - 10, (len(made) + 1) // 2 * HEIGHT - 10
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">']
    svg.append(f"<style>{_STYLE}</style>")
    for index, panel in enumerate(made):
        place = f"{index % 2 * WIDTH},{index // 2 * HEIGHT}"
        lines = draw(panel, evaluate(panel, scrapes), (min(scrapes), max(scrapes)))
        svg += [f'<g transform="translate({place})">', *lines, "</g>"]
    picture.write_text("\n".join([*svg, "</svg>", ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
