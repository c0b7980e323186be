"""Pages for readers with a screen reader or weak eyes: headings in order, images with a text, contrasts.

The page of a run is looked at in `make test`, those of the site in `make test-slow`.
"""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from report.runs import page_of, write_run
from report.test_contrast import LEAST, contrast

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
DRAWINGS = sorted((ROOT / "docs").rglob("*.svg"))


class Outline(HTMLParser):
    """The levels of a page's headings, and the images without a text."""

    def __init__(self, page):
        super().__init__()
        self.levels, self.wordless = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "img" and not dict(attributes).get("alt"):
            self.wordless.append(attributes)


def problems(levels):
    """Return what is wrong with an order of headings."""
    found = [] if levels.count(1) == 1 and levels[0] == 1 else [f"level 1 is not once and first: {levels}"]
    pairs = pairwise(levels)
    return found + [f"level {a} is followed by {b}" for a, b in pairs if b > a + 1]


def without_code(text):
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", text, flags=re.M | re.S)


def test_headings_that_skip_a_level_or_lack_the_first_are_a_problem():
    assert all(map(problems, ([], [2], [1, 1], [1, 3], [1, 2, 4], [2, 1])))
    assert not problems([1, 2, 3, 2, 2, 3])


@pytest.mark.slow
def test_each_page_of_the_documentation_has_one_title_and_skips_no_level():
    found = {}
    for path in PAGES:
        headings = re.findall(r"^(#{1,6}) ", without_code(path.read_text()), re.M)
        if wrong := problems([len(marks) for marks in headings]):
            found[str(path.relative_to(ROOT))] = wrong
    assert found == {}


@pytest.mark.slow
def test_each_image_of_the_documentation_has_a_text():
    wordless = {}
    for path in PAGES:
        text = without_code(path.read_text())
        found = [*re.findall(r"!\[\s*\]\([^)]*\)", text), *Outline(text).wordless]
        if found:
            wordless[str(path.relative_to(ROOT))] = found
    assert wordless == {}


def test_a_run_s_page_has_one_title_and_each_drawing_of_it_a_name(tmp_path):
    page = page_of(write_run(tmp_path, scores={20: {"test/loss": 2.5}}))
    outline = Outline(page)
    assert problems(outline.levels) == []
    assert outline.wordless == []
    drawings = re.findall(r'<svg[^>]*role="img".*?</svg>', page, re.S)
    assert drawings
    assert all(re.search(r"<title>[^<]+</title>", drawing) for drawing in drawings)


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_has_a_title_and_texts_that_can_be_read_on_all_its_grounds(path):
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert all(root.findtext(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc"))
    fills = dict(re.findall(r"^\s*\.?(\w+) \{[^}]*?fill: (#\w+)", text, re.M))
    inks = [fills[name] for name in ("text", "small")]
    grounds = ["#ffffff", *(fills[name] for name in ("box", "loop", "disk", "frame"))]
    assert min(contrast(ink, ground) for ink in inks for ground in grounds) >= LEAST


DARK_PAGE, DARK_CODE = "#1e2129", "#272a35"
"""The grounds of the theme's dark scheme, `hsl(225 15% 14%)` and `hsl(225 15% 18%)`."""


@pytest.mark.slow
def test_the_site_s_own_colours_can_be_read_in_light_and_in_dark():
    css = (ROOT / "docs/assets/site.css").read_text()
    blocks = dict(re.findall(r"^([^{}\n]+) \{\n(.*?)^\}", css, re.M | re.S))
    light, slate = (
        dict(re.findall(r"--md-([\w-]+): (#\w{6})", blocks[name]))
        for name in (":root", '[data-md-color-scheme="slate"]')
    )
    button = re.search(r'slate"\] \.md-button--primary \{ background: (#\w+); .* color: (#\w+)', css).groups()
    pairs = {
        "header": ("#ffffff", light["primary-fg-color"]),
        "dark header": ("#ffffff", slate["primary-fg-color"]),
        **{f"light {name}": (light[name], "#f5f5f5") for name in ("typeset-a-color", "accent-fg-color")},
        **{f"dark {name}": (slate[name], DARK_PAGE) for name in ("typeset-a-color", "accent-fg-color")},
        **{name: (colour, DARK_CODE) for name, colour in slate.items() if name.startswith("code-hl")},
        "dark button": button,
    }
    assert {name: pair for name, pair in pairs.items() if contrast(*pair) < LEAST} == {}
    assert len(pairs) == 9
