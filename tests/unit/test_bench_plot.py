"""The picture of latency against load."""

import itertools
import xml.etree.ElementTree as ET
from typing import Any

from scripts.plot_performance import picture

SVG = "{http://www.w3.org/2000/svg}"


def figures(loads: dict[int, tuple[float, float]]) -> dict[str, Any]:
    def way(p50: float) -> dict[str, float]:
        return {"p50_ms": p50, "p99_ms": p50 * 4}

    found: dict[str, Any] = {
        str(load): {"direct": way(direct), "relay": way(1), "emceepee": way(ours)}
        for load, (direct, ours) in loads.items()
    }
    about = {"cores": 2, "python": "3.11", "commit": "<abc>"}
    return {"machine": about, "sections": {"load": {**found, "load_average": [1, 2]}}}


def test_four_lines_with_a_point_for_each_load_rise_with_the_latency() -> None:
    root = ET.fromstring(picture(figures({1: (0.02, 0.1), 16: (0.2, 0.8), 64: (0.7, 3.0)})))
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 4
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert len(points) == 3
        across, up = [x for x, _ in points], [y for _, y in points]
        assert across == sorted(across)
        assert up == sorted(up, reverse=True)
        assert all(0 < x < 760 for x in across)
        assert all(0 < y < 440 for y in up)


def test_every_line_has_a_name_of_its_own_place_and_the_run_is_described() -> None:
    root = ET.fromstring(picture(figures({1: (0.1, 0.1), 64: (0.1, 0.1)})))
    texts = {text.text: float(text.attrib["y"]) for text in root.findall(f"{SVG}text")}
    names = [f"{way} {part}" for way in ("direct", "emceepee") for part in ("p50", "p99")]
    places = sorted(texts[name] for name in names)
    assert all(b - a >= 15 for a, b in itertools.pairwise(places))
    assert "2 cores, Python 3.11, commit <abc>" in texts
