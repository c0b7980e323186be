"""A page as a browser shows it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meshwright.report._comparison_page import write_comparison
from meshwright.report._page import write_page
from meshwright.report._run import read_run
from report.runs import write_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
    *("--enable-logging=stderr", "--dump-dom"),
)


@pytest.fixture
def browse(tmp_path):
    """Return what becomes of a page: its elements, what the console says, and what it loads."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, "these tests open pages in Chromium: apt-get install chromium, or sh scripts/programs"

    def browsed(file):
        nets = tmp_path / "net.json"
        places = [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={nets}", file.as_uri()]
        done = subprocess.run([program, *FLAGS, *places], capture_output=True, text=True, timeout=400)
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr), loaded(json.loads(nets.read_text()))

    return browsed


def loaded(log):
    """The addresses that the page asked for: the browser's own requests have no origin."""
    asked = (event["params"] for event in log["events"] if "initiator" in event.get("params", {}))
    return [params["url"] for params in asked if params["initiator"] != "not an origin"]


@pytest.mark.slow
def test_a_page_is_drawn_without_an_error_and_without_the_network(finished, browse, tmp_path):
    page = Path(write_page(read_run(finished), tmp_path / "page.html"))
    elements, console, loads = browse(page)
    assert (console, loads) == ([], [])
    loss = re.search(r"<figure><figcaption><b>loss</b>.*?</figure>", elements, re.S)[0]
    train, evaluated = re.findall(r'<path d="([^"]*)" class="line">', loss)
    assert (train.count("L"), evaluated.count("L")) == (9, 3)
    assert elements.count("<figure>") == page.read_text().count("<figure>") >= 8


def test_a_comparison_is_sorted_by_the_column_that_is_pressed(browse, tmp_path):
    runs = [read_run(write_run(tmp_path / f"run{i}", (2.0, loss))) for i, loss in enumerate((0.5, 10.0, 9.0))]
    page = Path(write_comparison(runs, tmp_path / "page.html"))
    press = "<script>document.querySelector('th[data-first] button').click()</script>"
    page.write_text(page.read_text().replace("</body>", f"{press}</body>"))
    elements, console, loads = browse(page)
    assert (console, loads) == ([], [])
    assert re.findall(r'scope="row" class="text" data-key="(\w+)"', elements) == ["run0", "run2", "run1"]


def test_an_error_and_a_request_would_be_seen(browse, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<script>console.error('boo')</script><img src='http://example.invalid/x.png'>")
    _, console, loads = browse(page)
    assert "boo" in console[0]
    assert loads == ["http://example.invalid/x.png"]
