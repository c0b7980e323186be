import math
import re
import shutil
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from report.runs import DESCRIPTION, chart_of, page_of, write_run

MARKUP = st.sampled_from(["<b>", "</title>", "<!--", "&amp;", '"', "'", "]]>", "</style>", "=", " "])
NAMES = st.lists(MARKUP | st.text(st.characters(exclude_categories=("Cs",)), min_size=1), min_size=1).map(
    "".join
)


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, sorted(name for name, _ in attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_page_has_all_that_the_run_left(finished):
    text = Reader(page_of(finished)).text
    for told in (
        "finished",
        "10 of 10 steps",
        "all/loss",
        "Evaluations",
        "Checkpoints",
        "Attempts",
        "Outputs",
    ):
        assert told in text
    assert "optax.scale(step_size=-0.01)" in text
    assert "params/w" in text


def test_a_page_loads_nothing(finished):
    page = page_of(finished)
    assert not re.search(r"<script|<link|<img|<iframe|src=|url\(|@import|https?://", page)


def test_training_and_evaluation_of_one_quantity_are_in_one_chart(tmp_path):
    loss = chart_of(write_run(tmp_path, scores={20: {"test/loss": 2.5}, 40: {"test/loss": 2.0}}))
    assert "train from 3 at step 10 to 1.25 at step 40; test from 2.5 at step 20 to 2 at step 40" in loss
    assert loss.count('class="line"') == 2


def test_what_is_not_finite_is_a_cross_and_breaks_the_curve(tmp_path):
    loss = chart_of(write_run(tmp_path, (3.0, 2.0, math.nan, 1.0, math.inf)))
    assert loss.count('class="line"') == 2
    assert re.findall(r"not finite at step (\d+)", loss) == ["30", "50"]
    assert "2 of 5 values not finite" in loss


def test_where_a_run_was_continued_is_a_line_in_each_chart(finished):
    page = page_of(finished)
    assert page.count('class="restart"') == page.count("<figure>")
    assert "continued from step 6" in page


def test_thousands_of_reports_make_a_page_of_bounded_size(tmp_path):
    write_run(tmp_path, [math.sin(i) for i in range(5000)])
    assert len(page_of(tmp_path)) < 100_000


def test_a_run_without_any_report_has_a_page(tmp_path):
    (tmp_path / "experiment.txt").write_text(DESCRIPTION)
    assert "Missing files: environment.json, metrics.jsonl" in Reader(page_of(tmp_path)).text


def test_many_evaluations_are_shown_in_part_and_folded(tmp_path):
    scores = {10 * i: {"test/wrong": 50.0 + abs(i - 25)} for i in range(1, 101)}
    page = page_of(write_run(tmp_path, [1.0] * 100, scores=scores))
    shown = page[page.index("Scores by step") : page.index("all 100")]
    assert re.findall(r'<tr><td class="number">([\d,]+)</td>', shown)[-2:] == ["250", "10"]
    assert 'class="mark">best </span>50<' in shown


@settings(max_examples=15)
@given(NAMES)
def test_no_name_or_text_breaks_a_page(tmp_path_factory, name):
    """The elements are the same, whatever stands in them; and what stands there is what was written."""
    tags = []
    for label in ("plain", name):
        run = tmp_path_factory.mktemp("run")
        text = label.replace("\n", "").replace("\r", "")
        outcome = {"ended": "failed", "message": f"!{label}!"}
        scores = {10: {f"test/{label.replace('/', '')}": 1.0}}
        write_run(run, (1.0,), scores=scores, settings=f"evaluations.test.x = {text!r}\n", outcome=outcome)
        read = Reader(page_of(run))
        tags.append([tag for tag, _ in read.tags if tag != "wbr"])
        assert ascii_of(f"!{label}!") in ascii_of(read.text)
        shutil.rmtree(run)
    assert tags[0] == tags[1]


def ascii_of(text):
    """What of a text is printable ASCII: other characters a page may show otherwise."""
    return "".join(c for c in text if " " < c <= "~")


def test_what_several_processes_log_at_the_same_time_is_one_row(tmp_path):
    logs = write_run(tmp_path) / "logs"
    for number in range(4):
        said = f"2026-11-21T03:57:3{number} ERROR process {number} stands still\n"
        (logs / f"process-0000{number}.log").write_text(said)
    text = Reader(page_of(tmp_path)).text
    assert text.count("stands still") == 1
    assert "process-00000 and 3 more" in text
