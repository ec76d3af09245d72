"""The page of `numerics report` in headless Chromium: silent, alone, good in the dark, on a telephone and on paper."""

import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from tests.cli.conftest import Command
from tests.cli.report_samples import SAMPLES, saved, with_strings

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM: Final = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
DARK: Final = "--blink-settings=preferredColorScheme=0"
LIGHT: Final = "--blink-settings=preferredColorScheme=1"
SECONDS: Final = 60
# Says how wide the page is, and which boxes reach beyond it.
FRAME: Final = """
<iframe src="{page}" style="width: {width}px; height: 800px; border: 0"></iframe><p id="said"></p>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, width = page.documentElement.clientWidth
  const boxes = [...page.querySelectorAll("h1, h2, h3, p, li, dd, pre, figure, .scroll, svg[role]")]
  const beyond = boxes.filter(box => box.getBoundingClientRect().right > width + 0.5)
  document.getElementById("said").textContent =
    page.documentElement.scrollWidth + " " + beyond.map(box => box.outerHTML.slice(0, 80)).join(" ")
}}</script>
"""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
)

Browse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Opens a page in a profile of its own."""

    def run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
        profile = tmp_path / "profile"
        shutil.rmtree(profile, ignore_errors=True)
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)

    return run


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was asked of it."""
    asked: list[str] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as listening:
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", asked
        listening.shutdown()
        thread.join()


@pytest.fixture
def page(numerics: Command, tmp_path: Path) -> Path:
    """Of every sample."""
    out = tmp_path / "report.html"
    assert numerics("report", *saved(tmp_path, *SAMPLES), "--out", out).code == 0
    return out


def console(run: subprocess.CompletedProcess[str]) -> list[str]:
    """What the page wrote to the browser's console: errors, and what its policy kept it from."""
    return re.findall(r"CONSOLE[:(].*", run.stderr)


def test_a_page_says_nothing_and_asks_for_nothing_even_with_markup_in_its_files(
    numerics: Command, tmp_path: Path, browse: Browse, server: tuple[str, list[str]]
) -> None:
    address, asked = server
    markup = f"'\"><img src={address}/img><script src={address}/js></script><style>@import '{address}/css';</style>"
    hostile = {name: with_strings(make(), lambda text: text + markup) for name, make in SAMPLES.items()}
    out = tmp_path / "report.html"
    assert numerics("report", *saved(tmp_path, **hostile), "--out", out, "--title", markup).code == 0
    run = browse(out, "--dump-dom")
    assert "<h1>" in run.stdout
    assert console(run) == []
    assert asked == []


def test_the_policy_holds_where_markup_slips_through(page: Path, browse: Browse, server: tuple[str, list[str]]) -> None:
    address, asked = server
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<h1>", f"<img src={address}/img><script>document.title = 'run'</script><h1>"))
    run = browse(page, "--dump-dom")
    assert len(console(run)) == 2  # which shows, too, that the test above could fail
    assert asked == []
    page.write_text(page.read_text(encoding="utf-8").replace("Content-Security-Policy", "Nothing"))
    browse(page, "--dump-dom")
    assert asked == ["/img"]


def test_a_page_is_light_or_dark_as_the_reader_is(page: Path, tmp_path: Path, browse: Browse) -> None:
    shades = []
    for scheme in (LIGHT, DARK):
        shot = tmp_path / "shot.png"
        browse(page, scheme, "--window-size=1200,900", f"--screenshot={shot}")
        shades.append(sum(corner(shot)) / 3)
    assert shades[0] > 240
    assert shades[1] < 40


def test_a_page_prints(page: Path, tmp_path: Path, browse: Browse) -> None:
    paper = tmp_path / "report.pdf"
    browse(page, DARK, f"--print-to-pdf={paper}")
    content = paper.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) > 2


@pytest.mark.parametrize("width", [360, 1600])
def test_a_page_is_no_wider_than_its_window(page: Path, tmp_path: Path, browse: Browse, width: int) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=page.name, width=width))
    run = browse(frame, "--dump-dom", "--allow-file-access-from-files")
    assert re.findall('<p id="said">(.*?)</p>', run.stdout) == [f"{width} "]


def corner(path: Path) -> bytes:
    """The pixel at the upper left of a PNG. No filter of PNG changes it."""
    content, at, packed, depth = path.read_bytes(), 8, b"", 0
    while at < len(content):
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunk = content[at + 8 : at + 8 + size]
        depth = chunk[9] if kind == b"IHDR" else depth
        packed += chunk if kind == b"IDAT" else b""
        at += size + 12
    assert depth in {2, 6}  # of red, green, blue, and perhaps an alpha
    return zlib.decompress(packed)[1:4]
