"""The report as a browser draws it, on a phone and on a desk."""

import base64
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import chromium

pytestmark = pytest.mark.slow
PHONE, DESK = (390, 844), (1280, 900)
# Where an element is, what is in it, and how large its letters are on the screen.
_FIGURES = """
return [...document.querySelectorAll('table.bars')].map(e => {
  const box = e.getBoundingClientRect();
  const marks = [...e.querySelectorAll('.bar')].map(m => m.getBoundingClientRect());
  const words = [...e.querySelectorAll('th')].filter(t => t.getBoundingClientRect().width);
  return {
    hidden: e.closest('details') !== null && !e.closest('details').open,
    label: (e.caption && e.caption.textContent) || '',
    left: box.left, right: box.right, width: box.width, height: box.height,
    marks: marks.length, seen: marks.filter(m => m.width > 0 && m.height > 0).length,
    inside: marks.filter(m => m.left >= box.left - 1 && m.right <= box.right + 1
                           && m.top >= box.top - 1 && m.bottom <= box.bottom + 1).length,
    letters: Math.min(...words.map(t => parseFloat(getComputedStyle(t).fontSize))),
  };
});
"""


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; skipped with the reason where it cannot be had."""
    driver = chromium()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(model_directory, tables, tmp_path_factory):
    """A report on a small model, with a warning: one pair is rated twice."""
    from simrec.jobs.evaluate import report
    from simrec.jobs.train import DataOptions

    path = tmp_path_factory.mktemp("report") / "report.html"
    ratings, twice = pq.read_table(tables / "ratings.parquet"), path.with_name("ratings.parquet")
    pq.write_table(pa.concat_tables([ratings, ratings.slice(0, 1)]), twice)
    features = {name: str(tables / f"{name}.parquet") for name in ("items", "users")}
    report(model_directory, DataOptions(ratings=str(twice), **features), path)
    return path


@pytest.fixture
def open_page(browser, page):
    """Open the report on a screen of some size; light or dark."""

    def opened(size, scheme="light"):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        metrics["mobile"] = size == PHONE
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get(page.as_uri())
        return browser

    return opened


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_everything_is_drawn_inside_the_screen(open_page, size):
    browser = open_page(size)
    assert browser.execute_script("return innerWidth") == size[0]
    # Nothing makes the page wider than the screen.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    figures = [f for f in browser.execute_script(_FIGURES) if not f["hidden"]]
    # Two of features, the most recommended.
    assert len(figures) >= 3
    for figure in figures:
        label = figure["label"]
        assert label
        assert figure["left"] >= 0 and figure["right"] <= size[0], label
        assert figure["width"] >= 250 and figure["height"] >= 40, label
        assert figure["marks"] >= 2 and figure["seen"] == figure["marks"], label
        assert figure["inside"] == figure["marks"], label
        assert figure["letters"] >= 10, label
    body = "return parseFloat(getComputedStyle(document.querySelector('#shown > p')).fontSize)"
    assert browser.execute_script(body) >= 15


def test_the_first_screen_of_a_phone_says_whether_to_ship(open_page):
    browser = open_page(PHONE)
    box = "return document.querySelector('.verdict').getBoundingClientRect().toJSON()"
    found = browser.execute_script(box)
    assert found["top"] > 0 and found["bottom"] < PHONE[1] and found["width"] > 330
    tops = browser.execute_script(
        "return ['.verdict', 'header table', 'header ol', 'header ul', 'nav', '#shown']"
        ".map(name => document.querySelector(name).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)


def test_better_worse_and_no_difference_look_different(open_page):
    """Green and bold for a winner, red and plain for a loser, grey where there is none."""
    browser = open_page(PHONE)
    # The classes as the page's style draws them, also those that this model does not earn.
    drawn = browser.execute_script(
        "return ['better', 'worse', 'same', ''].map(name => {"
        " const e = document.querySelector('main').appendChild(document.createElement('span'));"
        " e.className = name; const style = getComputedStyle(e);"
        " const found = [style.color, parseInt(style.fontWeight)]; e.remove(); return found; });"
    )
    colours = [[int(c) for c in re.findall(r"\d+", colour)[:3]] for colour, _ in drawn]
    better, worse, same, plain = colours
    assert better[1] > max(better[0], better[2]) and worse[0] > 2 * max(worse[1:])
    assert max(same) - min(same) < 40 and same != plain
    assert [weight for _, weight in drawn] == [700, 400, 400, 400]
    # Of the model's figures, those in bold are those it won; the spread never is.
    cells = browser.execute_script(
        "return [...document.querySelectorAll('header table td > span')].map(cell =>"
        " [...cell.children].map(s => [s.className, s.textContent.split(':')[0],"
        " parseInt(getComputedStyle(s).fontWeight)]))"
    )
    assert len(cells) >= 4
    for (kind, word, weight), (_, _, of_spread) in cells:
        if kind == "same":
            assert word == "no clear difference" or word.endswith(("matter", "chance"))
        else:
            assert word.startswith(f"{kind} by ") and word.endswith("%")
        assert (weight == 700) == (kind == "better") and of_spread == 400


def test_tables_are_whole_on_a_phone(open_page):
    """Each row is a small list: every cell with its label, nothing cut off."""
    browser = open_page(PHONE)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    cells = browser.execute_script(
        "return [...document.querySelectorAll('table.stack td')].map(c => {"
        " const b = c.getBoundingClientRect(); return [b.left, b.right, c.scrollWidth,"
        " c.clientWidth, getComputedStyle(c, '::before').content]; })"
    )
    assert len(cells) > 20
    for left, right, wanted, given, label in cells:
        assert left >= 0 and right <= PHONE[0] and wanted <= given + 1
        assert len(label) > 3, label
    assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]


def test_console_and_network_are_silent(open_page, page):
    browser = open_page(PHONE)
    browser.get_log("performance")  # what was before
    open_page(PHONE)
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        message["params"]["request"]["url"].split("#")[0]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    assert asked == {page.as_uri()}


def test_light_and_dark(open_page):
    """Letters stand out from the paper on both kinds of screen."""

    def luminance(colour):
        parts = [int(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    papers = []
    for scheme in ("light", "dark"):
        browser = open_page(PHONE, scheme)
        style = "return getComputedStyle(document.querySelector('{}')).{}"
        paper = luminance(browser.execute_script(style.format("body", "backgroundColor")))
        for element, name in (("main p", "color"), ("caption", "color"), ("footer p", "color")):
            ink = luminance(browser.execute_script(style.format(element, name)))
            high, low = max(ink, paper), min(ink, paper)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, element)
        papers.append(paper)
    assert papers[0] > 0.8 > 0.2 > papers[1]


def test_the_picture_is_not_blank(open_page):
    browser = open_page(PHONE)
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    assert len(base64.b64decode(shot)) > 20_000
    for key in ("shown", "features"):
        height = f"return document.getElementById('{key}').getBoundingClientRect().height"
        assert browser.execute_script(height) > 150, key
