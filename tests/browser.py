"""Chromium for tests that look at pages."""

import shutil

import pytest


def chromium(width=None, height=None):
    """Start Chromium without a window; skipped with the reason where it cannot be had."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    programs = {}
    for what, names in {
        "Chromium": ("chromium", "chromium-browser", "google-chrome"),
        "its driver": ("chromedriver",),
    }.items():
        programs[what] = next(filter(None, map(shutil.which, names)), None)
        if programs[what] is None:
            pytest.skip(f"{what} is not installed (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["Chromium"]
    for flag in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        "--disable-dev-shm-usage",
        *(() if width is None else (f"--window-size={width},{height}",)),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(programs["its driver"])
    driver = webdriver.Chrome(options=options, service=service)
    if width is not None:
        driver.set_window_size(width, height)
    return driver
