"""Curves as they are drawn, read off the page."""

import itertools
import math
import re

from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from report.runs import chart_of, write_run

EDGE = [math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7e308, -1.7e308, 1.0, 1.0000000000000002]


def points(chart, kind="line"):
    """The places of all paths of a kind, as (x, y)."""
    paths = re.findall(rf'<path d="M([^"]*)" class="{kind}">', chart)
    return [tuple(map(float, place.split())) for path in paths for place in path.strip("Z").split("L")]


def test_a_point_lies_where_its_axes_say(tmp_path):
    chart = chart_of(write_run(tmp_path, (4.0, 2.0, 3.0, 4.0)))
    ticks = re.findall(r'<text x="[\d.]+" y="([\d.]+)" class="axis" text-anchor="end">([\d.]+)</text>', chart)
    at = {float(label): float(y) - 3.5 for y, label in ticks}
    assert [y for _, y in points(chart)] == [at[4.0], at[2.0], at[3.0], at[4.0]]
    assert [x for x, _ in points(chart)] == [110.5, 175.0, 239.5, 304.0]


def test_one_spike_among_thousands_is_not_lost(tmp_path):
    losses = [2.0 + math.sin(i) / 100 for i in range(5000)]
    losses[3210], losses[4321] = 9.0, -5.0
    heights = sorted(y for _, y in points(chart_of(write_run(tmp_path, losses)), "band"))
    assert heights[0] < 20 < 80 < heights[1]
    assert heights[-2] < 120 < 175 < heights[-1]


def test_what_falls_over_decades_is_on_a_log_scale(tmp_path):
    chart = chart_of(write_run(tmp_path, [math.exp(-i / 4) for i in range(40)]))
    assert "log scale" in chart
    x, y = zip(*points(chart), strict=True)
    slopes = {round((b - a) / (d - c), 1) for a, b, c, d in zip(y, y[1:], x, x[1:], strict=False)}
    assert max(slopes) - min(slopes) < 0.2  # of an exponential it is one line


def test_a_steep_beginning_is_cut_off_and_told(tmp_path):
    losses = [11.0, 6.0, 4.0] + [2.0 + 1 / i for i in range(1, 60)]
    chart = chart_of(write_run(tmp_path, losses))
    assert "starts at 11" in chart
    assert points(chart)[0][1] < 0 < min(y for _, y in points(chart)[10:])


def test_speed_begins_at_zero(tmp_path):
    chart = chart_of(write_run(tmp_path), "steps_<wbr>per_<wbr>second")
    assert ">0</text>" in re.sub(r'class="axis" text-anchor="middle">0<', "", chart)


def test_labels_at_the_ends_of_equal_curves_do_not_cover_each_other(tmp_path):
    scores = {10: {f"e{i}/loss": 1.0 for i in range(5)} | {f"e{i}/seconds": 1.0 for i in range(5)}}
    chart = chart_of(write_run(tmp_path, (1.0,), scores=scores))
    heights = sorted(float(y) for y in re.findall(r'<text x="312.0" y="([\d.]+)" class="label', chart))
    assert len(heights) == 6
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 12


def test_of_many_arrays_the_largest_are_drawn(tmp_path):
    write = mw.observe.jsonl(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        write(step, {f"grad_norm/layers/{i}": float(i) for i in range(100)})
    chart = chart_of(tmp_path, "grad_<wbr>norm/…")
    assert "the 8 largest of 100" in chart
    assert re.findall(r"layers/(\d+) from", chart) == [str(i) for i in range(99, 91, -1)]


@given(st.lists(st.floats() | st.sampled_from(EDGE), min_size=1, max_size=400))
def test_any_numbers_can_be_drawn(tmp_path_factory, values):
    run = tmp_path_factory.mktemp("run")
    line = '{{"step": {}, "loss": "{}", "e/loss": "{}", "e/seconds": 1}}\n'
    lines = (line.format(i, value, value) for i, value in enumerate(values))
    (run / "metrics.jsonl").write_text("".join(lines))
    chart = chart_of(run)
    places = re.findall(r' (?:d|x|y|x1|y1|cx|cy|width)="([^"]*)"', chart)
    assert places
    assert not [place for place in places if re.search("nan|inf|e[+-]", place)]
    assert all(-1e6 < y < 1e6 for _, y in points(chart))
