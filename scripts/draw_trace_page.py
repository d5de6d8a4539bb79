"""Draws the pictures of the trace page in docs/images, from made-up requests in a real browser.

`python -m scripts.draw_trace_page` needs chromium.
"""

import sys
import tempfile
from pathlib import Path

from tests.e2e.chromium import Chromium, chromium
from tests.e2e.page_harness import served
from tests.trace_records import journal_lines, requests, write_journal, write_requests

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SEED = 1353  # has a start, a crash, a question and a call that became a task
REQUESTS = 70
SIZE = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}

IS_DRAWN = "document.getElementById('live').dataset.state === 'live' && page.rows.items.length > 5"
NEXT_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
OPEN_THE_QUESTION = """
(() => {
  const asked = page.rows.items.find(item => item.request?.record.questions);
  page.rows.select(asked.key);
  page.openDetails();
})()
"""


def draw(browser: Chromium, address: str) -> None:
    browser.send("Emulation.setDeviceMetricsOverride", **SIZE)
    browser.theme("light")
    browser.open(address)
    browser.until(IS_DRAWN)
    browser.run(NEXT_FRAME)
    browser.picture(IMAGES / "trace-light.png")
    browser.theme("dark")
    browser.run(OPEN_THE_QUESTION)
    browser.run(NEXT_FRAME)
    browser.picture(IMAGES / "trace-dark.png")


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        made = list(requests(REQUESTS, seed=SEED, payloads=True))
        write_requests(directory / "logs", made)
        write_journal(directory / "logs", journal_lines(made, seed=SEED))
        with served(directory / "logs") as page, chromium(directory) as browser:
            draw(browser, page.address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
