"""The screenshots of the documentation; `make screenshots` writes them."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from chromium import Browser
from PIL import Image

import ferromq

DIRECTORY = os.environ.get("FERROMQ_SCREENSHOTS")
PICTURES = (
    ("cluster", "/", "light", 3, 800),
    ("group", "/group?name=billing", "dark", 3, 1080),
    ("move", "/group/reset?name=billing&topic=orders&to=begin", "light", 0, 800),
)
"""Name, page, theme, how many seconds of messages the charts show, and the height."""


@pytest.mark.skipif(DIRECTORY is None, reason="`make screenshots` writes the pictures")
def test_pages_are_drawn(browser: Browser, mq: ferromq.Embedded) -> None:
    """Each as a small file of 64 colours."""
    assert DIRECTORY is not None
    with mq.producer() as producer:
        for name, path, theme, seconds, height in PICTURES:
            browser.driver.set_window_size(1280, height + 143)
            browser.open("/sign-in")
            browser.driver.add_cookie({"name": "ferromq_theme", "value": theme})
            browser.open(path)
            for number in range(20 * seconds):
                producer.send("orders", b'{"order": %d, "price": 3.2}' % (100 + number), keys=f"order-{number}")
                browser.driver.execute_async_script("setTimeout(arguments[0], 100 + 200 * Math.random())")
            picture = Image.open(BytesIO(browser.driver.get_screenshot_as_png()))
            small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            small.save(Path(DIRECTORY) / f"dashboard-{name}.png", optimize=True)
    browser.driver.set_window_size(1280, 900)
    browser.driver.delete_cookie("ferromq_theme")
