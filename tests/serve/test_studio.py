"""The studio in a real Chromium: each of its four views is driven, and looked at."""

import socket
import threading
import time

import pytest
from browser import chromium

pytest.importorskip("fastapi", reason="the extra simrec[serve] is not installed")
WAIT = 60
NAMES = "document.querySelectorAll('#asked .name')"


@pytest.fixture(scope="module")
def address(shop, tmp_path_factory):
    """A studio with two models, in this process."""
    import uvicorn

    from simrec import TwoTower
    from simrec.serve.app import create_app
    from simrec.serve.service import Settings

    root = tmp_path_factory.mktemp("studio")
    other = TwoTower.load(shop.path)
    ratings = [(user, 17, 0.5) for user in range(1, 30)]
    rows = [dict(zip(("user_id", "item_id", "rating"), one, strict=True)) for one in ratings]
    other.update(rows).save(root / "other")
    settings = Settings(
        str(shop.path), str(root / "other"), str(root / "state"), poll=0, studio=True
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(create_app(settings), port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser():
    driver = chromium(1280, 900)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, address):
    browser.get(address)
    until(browser, "return document.body.dataset.ready === 'yes'")
    until(browser, "return document.querySelectorAll('#user-list li').length === 10")
    return browser


def until(driver, script, *arguments):
    """Wait until a script returns something true; return it."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        found = driver.execute_script(script, *arguments)
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {WAIT} s: {script}; {driver.get_log('browser')}")


def texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )


def put(driver, element, value):
    driver.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input'));",
        element,
        value,
    )


def click(driver, selector):
    driver.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_be_a_new_user(page, shop):
    titles = set(shop.model.titles().values())
    before = texts(page, "#user-list .name")
    assert all(any(title in name for title in titles) for name in before)
    assert len(texts(page, "#popular li")) == 10
    numbers = texts(page, "#user-list .number")
    # A question is answered: the list moves, with reasons, and uncertainty narrows.
    asked = texts(page, "#asked .name")
    assert len(asked) == 3
    click(page, "#asked li:first-child .rate button:nth-of-type(5)")
    until(page, "return document.querySelector('#mine li') !== null")
    until(page, "return document.querySelector('#user-summary').textContent.includes('was')")
    assert asked[0] in texts(page, "#mine .name")[0]
    until(page, f"return ![...{NAMES}].some(e => e.textContent === arguments[0])", asked[0])
    assert f"because you liked {asked[0]}" in " ".join(texts(page, "#user-list .why"))
    bars = page.execute_script(
        "return [...document.querySelectorAll('#user-list .bar i')].map(e => e.clientWidth)"
    )
    assert len(bars) == 10
    assert min(bars) > 5
    for n, place in ((2, 1), (3, 1), (4, 5)):
        first = texts(page, "#asked .name")[0]
        click(page, f"#asked li:first-child .rate button:nth-of-type({place})")
        until(page, f"return document.querySelector('#user-summary').textContent[0] === '{n}'")
        until(page, f"return {NAMES}[0].textContent !== arguments[0]", first)
    assert texts(page, "#user-list .number") != numbers
    click(page, "#mine button")
    until(page, "return document.querySelectorAll('#mine li').length === 3")
    # Search, rate, remove; features count.
    mine = " ".join(texts(page, "#mine .name"))
    put(page, "find", next(t for t in sorted(titles) if t not in mine))
    until(page, "return document.querySelector('#found .rate button') !== null")
    click(page, "#found .rate button")
    until(page, "return document.querySelectorAll('#mine li').length === 4")
    put(page, "user-form-age", "60")
    until(page, "return document.querySelectorAll('#user-list li').length === 10")


def test_make_up_an_item(page):
    click(page, "#tab-item")
    until(page, "return document.querySelectorAll('#histogram rect').length === 20")
    first = texts(page, "#item-summary")[0]
    put(page, "item-form-genres", "Drama")
    until(page, "return document.querySelector('#changes div') !== null")
    put(page, "item-form-year", "1950")
    until(page, "return document.querySelectorAll('#changes div').length === 2")
    changes = texts(page, "#changes div")
    assert "genres" in changes[1]
    assert "year: null → 1950" in changes[0]
    assert texts(page, "#item-summary")[0] != first
    heights = page.execute_script(
        "return [...document.querySelectorAll('#histogram rect')].map("
        "e => e.getBoundingClientRect().height)"
    )
    assert max(heights) > 60
    assert len(texts(page, "#audience li")) == 10
    assert len(texts(page, "#alike li")) == 10
    assert len(texts(page, "#groups tr")) > 1


def test_look_around(page, shop):
    click(page, "#tab-look")
    until(page, "return document.querySelectorAll('#map circle').length === 80")
    colours = page.execute_script(
        "return new Set([...document.querySelectorAll('#map circle')].map("
        "e => e.getAttribute('fill'))).size"
    )
    assert colours > 3
    assert shop.model.model_id_[:12] in texts(page, "#card td")
    width = "return document.querySelector('#map').viewBox.baseVal.width"
    before = page.execute_script(width)
    click(page, "#zoom-in")
    assert page.execute_script(width) < before
    title = shop.model.titles([17])[17]
    put(page, "map-find", title)
    until(page, "return document.querySelectorAll('#near li').length === 8")
    assert texts(page, "#picked")[0].startswith(title)
    put(page, "known", "7")
    click(page, "#show-known")
    until(page, "return document.querySelectorAll('#known-list li').length === 10")
    assert texts(page, "#history .note")[0].endswith("in all")
    assert "because you liked" in " ".join(texts(page, "#known-list .why"))


def test_compare_two_models(page):
    click(page, "#tab-compare")
    put(page, "cmp-user", "7")
    click(page, "#cmp-user-go")
    until(page, "return document.querySelectorAll('#cmp-b li').length === 10")
    assert "of 10 are in both" in texts(page, "#cmp-note")[0]
    assert texts(page, "#cmp-a-name") != texts(page, "#cmp-b-name")
    put(page, "cmp-item", "17")
    click(page, "#cmp-item-go")
    until(page, "return document.querySelector('#cmp-note').textContent.includes('reach')")


def test_keyboard_names_and_narrow_screens(page, address):
    from selenium.webdriver.common.keys import Keys

    tab = page.find_element("id", "tab-user")
    tab.send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("id") == "tab-item"
    assert page.find_element("id", "view-item").is_displayed()
    assert not page.find_element("id", "view-user").is_displayed()
    nameless = page.execute_script(
        "return [...document.querySelectorAll('input, select, textarea, button')].filter(e =>"
        "!(e.labels && e.labels.length) && !e.textContent.trim()"
        "&& !e.getAttribute('aria-label')).map(e => e.outerHTML)"
    )
    assert nameless == []
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        for view in ("user", "item", "look", "compare"):
            click(page, f"#tab-{view}")
            wide = page.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 390, (view, wide)
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    errors = [one for one in page.get_log("browser") if one["level"] == "SEVERE"]
    assert errors == []
    asked = [line for line in (str(one) for one in page.get_log("performance"))]
    outside = [one for one in asked if '"url\\":\\"http' in one and address not in one]
    assert outside == []
