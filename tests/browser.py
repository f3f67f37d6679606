"""The audit's page as a real browser shows it."""

import re
import subprocess

from test_audit import NASTY, Nasty, by_name, page_of

CHROMIUM = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1080,1400",
]


def browse(tmp_path, *options):
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    page = (tmp_path / "page.html").as_uri()
    return subprocess.run(
        [*CHROMIUM, profile, *options, page], capture_output=True, text=True, check=True
    ).stdout


# Asks the browser itself where each square is, and of which colour it is painted.
LOOK = """
<script>
document.title = JSON.stringify([...document.querySelectorAll("rect")].map(rect => {
  const box = rect.getBoundingClientRect();
  return [box.width, getComputedStyle(rect).fill];
}));
</script>
"""


def test_copied_randomness_is_painted_alike(tmp_path):
    page_of(by_name("held").make(), tmp_path)
    with (tmp_path / "page.html").open("a") as file:
        file.write(LOOK)
    title = re.search("<title>(.*?)</title>", browse(tmp_path, "--dump-dom"), re.S)[1]
    squares = re.findall(r"\[(\d+),&quot;(rgb.*?)&quot;\]|\[(\d+),\"(rgb.*?)\"\]", title)
    colours = [square[1] or square[3] for square in squares]
    assert len(colours) == 2 * 17
    assert len(set(colours)) == 9  # worker 1 has none of its own
    assert colours[:8] == colours[9:17]


def test_nothing_of_the_users_is_run(tmp_path):
    page_of(Nasty(), tmp_path, name=NASTY)
    dom = browse(tmp_path, "--dump-dom")
    assert "<script" not in dom
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom


def test_the_page_is_drawn(tmp_path):
    page_of(by_name("jitter").make(), tmp_path)
    shot = tmp_path / "page.png"
    browse(tmp_path, f"--screenshot={shot}")
    assert shot.read_bytes().startswith(b"\x89PNG")
    # An empty page of this size has ten thousand bytes.
    assert shot.stat().st_size > 40_000
