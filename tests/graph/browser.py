"""A headless Chromium, in which the tests of `page` open pages as a reader does."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
_PATIENCE = 120  # seconds, on a machine with much else to do
_POLICY = re.compile(r"<meta http-equiv=[^>]*>")

# What a driver may use: it acts as a reader would, and returns what a reader would see.
_HELP = """
const $ = (selector) => document.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const words = (node) => node.nodeType === Node.TEXT_NODE
  ? [node.data.trim()]
  : node.querySelector(":scope > wbr") ? [node.textContent] : [...node.childNodes].flatMap(words);
const seen = (element) => words(element).filter((word) => word).join(" ");
const lines = () => $$("#tree .row").map(seen);
const line = (name) => $$("#tree .row").find((row) => row.querySelector(".name").title === name);
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const type = (text) => {
  $("#query").value = text;
  $("#query").dispatchEvent(new Event("input"));
};
const box = (path) => $$(".box").find((one) => one.title === path);
"""


def find_browser() -> str:
    """The path of a Chromium: $CHROMIUM, or one on PATH. Skips the test where there is none."""
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    browser = next(filter(None, found), None)
    if browser is None:
        pytest.skip(f"no Chromium: neither $CHROMIUM nor {', '.join(NAMES)} on PATH")
    return browser


def opened(page: str, folder: Path) -> str:
    """The document as it is once the page has run, untouched, from a file."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    # It opens nothing but our own page, and root has no sandbox.
    flags = ["--headless", "--disable-gpu", "--no-sandbox", "--window-size=1400,900", "--dump-dom"]
    flags += ["--virtual-time-budget=5000", f"--user-data-dir={folder / 'profile'}"]
    command = [find_browser(), *flags, path.as_uri()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def driven(page: str, driver: str, folder: Path) -> Any:
    """What a driver returns that runs once the page has: the body of a function in JavaScript.

    Args:
      page: the page.
      driver: runs in it.
      folder: for the files of the browser.
    """
    script = (
        f"<script>(() => {{ {_HELP} const drive = () => {{ {driver} }}; let found;"
        "try { found = drive(); } catch (error) { found = { failed: String(error.stack) }; }"
        "document.body.replaceChildren(Object.assign(document.createElement('pre'),"
        "{ textContent: JSON.stringify(found) })); })();</script></body>"
    )
    assert _POLICY.search(page)
    page = _POLICY.sub("", page).replace("</body>", script)
    found = re.search(r"<body[^>]*><pre>(.*?)</pre>", opened(page, folder), re.DOTALL)
    assert found, "the driver did not run: does a script of the page fail?"
    found = json.loads(unescape(found[1]))
    assert not (isinstance(found, dict) and "failed" in found), found["failed"]
    return found
