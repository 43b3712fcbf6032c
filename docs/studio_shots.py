"""Take the pictures of docs/studio.md: a studio of the embedded sample, in Chromium.

python docs/studio_shots.py DIRECTORY
"""

import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from selenium import webdriver

from simrec import TwoTower, make_synthetic
from simrec.serve.app import create_app
from simrec.serve.service import Settings

# View, what to do in it, what to wait for.
VIEWS = {
    "user": (
        "document.querySelector('#asked li .rate button:nth-of-type(5)').click()",
        "return document.querySelector('#user-list .why') !== null"
        " && document.querySelector('#user-summary').textContent.includes('was')",
    ),
    "item": (
        "const e = document.getElementById('item-form-genres'); e.value = 'Drama, Comedy';"
        "e.dispatchEvent(new Event('input'))",
        "return document.querySelector('#changes div') !== null",
    ),
    "look": (
        "document.getElementById('known').value = '7';"
        "document.getElementById('show-known').click()",
        "return document.querySelectorAll('#map circle').length > 9"
        " && document.querySelectorAll('#known-list li').length > 3",
    ),
    "compare": (
        "document.getElementById('cmp-user').value = '7';"
        "document.getElementById('cmp-user-go').click()",
        "return document.querySelectorAll('#cmp-b li').length > 3",
    ),
}


def main(directory: Path) -> None:
    """Fit two models to the sample, serve them, and take a picture of each view."""
    data = make_synthetic(n_users=400, n_items=300, n_ratings=12_000)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = TwoTower(epochs=8, random_state=0)
        model.fit(data.ratings, items=data.items, users=data.users).save(root / "films")
        few = data.ratings.slice(0, 6_000)
        TwoTower(epochs=8, random_state=0).fit(few, items=data.items, users=data.users).save(
            root / "films-half"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = Settings(
            str(root / "films"), str(root / "films-half"), str(root / "state"), studio=True
        )
        server = uvicorn.Server(uvicorn.Config(create_app(settings), port=port, log_level="error"))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        take(f"http://127.0.0.1:{port}/", directory)
        server.should_exit = True


def take(address: str, directory: Path) -> None:
    """Drive each view at two widths and save what is drawn."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        for width, height, views in ((1280, 860, VIEWS), (390, 844, ("user",))):
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
            )
            driver.get("about:blank")
            driver.get(address)
            wait(driver, "return document.querySelectorAll('#user-list li').length > 3")
            wait(driver, "return document.querySelectorAll('#asked li').length > 2")
            for view in views:
                driver.execute_script(f"document.getElementById('tab-{view}').click()")
                act, until = VIEWS[view]
                if view == "item":
                    wait(driver, "return document.querySelector('#histogram svg') !== null")
                driver.execute_script(act)
                wait(driver, until)
                name = f"studio-{view}{'' if width > 500 else '-phone'}.png"
                driver.save_screenshot(str(directory / name))
    finally:
        driver.quit()


def wait(driver: webdriver.Chrome, script: str, seconds: float = 120) -> None:
    """Wait until a script returns true."""
    end = time.monotonic() + seconds
    while not driver.execute_script(script):
        if time.monotonic() > end:
            raise TimeoutError(script)
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
