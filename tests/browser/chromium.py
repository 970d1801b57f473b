"""A window of Chromium, and where Chromium is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).parents[2]
CACHED = ROOT / ".cache" / "chromium"
"""Where `make chromium` unpacks Debian's packages if it may not install them."""
PATIENCE = 20.0
SCRIPT = "<script>document.title = 'run by a body'</script>"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900"),
    "--hide-scrollbars",
)


def found(name: str, *others: str) -> str:
    """Return the path of a program; skip without it."""
    for place in (shutil.which(name), *(str(CACHED / other) for other in others)):
        if place is not None and os.access(place, os.X_OK):
            return place
    pytest.skip(f"{name} is not installed; run make chromium")


class Browser:
    """A window of Chromium on one dashboard."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """Go to a page."""
        self.driver.get(self.url + path)

    def one(self, selector: str) -> WebElement:
        """Return an element, once it is there."""
        return WebDriverWait(self.driver, PATIENCE).until(lambda driver: driver.find_element(By.CSS_SELECTOR, selector))

    def all(self, selector: str) -> list[WebElement]:
        """Return elements that are there now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, on a page that changes meanwhile."""
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1)
        wait.until(lambda _: condition())

    def text(self) -> str:
        """Return what the page shows."""
        text: str = self.driver.execute_script("return document.body.innerText")
        return text

    def shows(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(lambda: text in self.text())

    def fill(self, **fields: str) -> None:
        """Type into fields of the form with an action."""
        for name, value in fields.items():
            element = self.one(f"main [name={name}]")
            if element.tag_name == "select":
                element.find_element(By.CSS_SELECTOR, f"option[value='{value}'], option").click()
                self.driver.execute_script("arguments[0].value = arguments[1]", element, value)
            else:
                element.clear()
                element.send_keys(value)

    def press(self, text: str) -> None:
        """Press the button or link of the page with a text."""
        for element in self.all("main button, main a"):
            if element.text.strip() == text:
                element.click()
                return
        raise AssertionError(f"no button {text!r} in: {self.text()}")

    def keys(self, *keys: str) -> None:
        """Type at the page as a whole."""
        for key in keys:
            self.one("body").send_keys(key)

    def complaints(self) -> list[str]:
        """Return what the browser complains about since the last time: scripts, policies, files that are missing."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
