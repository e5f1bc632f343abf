"""The site that `make docs` builds: it builds without a warning, and a real browser shows it."""

import functools
import json
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.pages import EXAMPLES, PAGES, ROOT

for package in ("sphinx", "myst_parser", "furo"):
    reason = f"the site needs {package} (requirements-dev.txt, from Python 3.11 on)"
    pytest.importorskip(package, reason=reason)
pytest.importorskip("selenium.webdriver", reason="needs selenium (requirements-dev)")
from selenium.webdriver.common.by import By  # noqa: E402 - after the skip
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

import kernelmint  # noqa: E402

pytestmark = pytest.mark.xdist_group("site")  # which is built once
SHOWN = [page.relative_to(ROOT).with_suffix(".html").as_posix() for page in (*PAGES, *EXAMPLES)]
SHOWN += ["CHANGELOG.html", "docs/api.html", "index.html"]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it: a warning, so a dead link, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "."]
    done = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def address(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_make_docs_builds_what_these_tests_build():
    target = (ROOT / "Makefile").read_text().partition("\ndocs: ")[2].partition("\n\n")[0]
    assert "-m sphinx -q -W --keep-going -c docs . " in target


def test_every_page_is_there_and_every_public_name(site):
    assert [page for page in SHOWN if not (site / page).exists()] == []
    api = (site / "docs/api.html").read_text()
    names = [*kernelmint.__all__, "register_operators", "integrations.torch.activate"]
    assert [name for name in names if f'id="kernelmint.{name}"' not in api] == []


def test_the_front_page_is_the_readme(site):
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()


def show_as(browser, size):
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return width


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", SHOWN)
def test_a_page_fits_the_screen(browser, address, page, size):
    """Only tables and code scroll, each by itself; text is large enough to be read."""
    width = show_as(browser, size)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(f"{address}/{page}")
    assert browser.find_element(By.CSS_SELECTOR, "article h1").text
    wide, least, cut = browser.execute_script("""
        const shown = [...document.querySelectorAll("article :is(p, li, td, th, pre, code)")];
        const size = (element) => parseFloat(getComputedStyle(element).fontSize);
        const cut = [...document.querySelectorAll("article :is(table, pre)")].filter((element) => {
          if (element.getBoundingClientRect().right <= innerWidth) return false;
          const around = element.closest(".table-wrapper");
          return !around || getComputedStyle(around).overflowX != "auto";
        });
        return [document.documentElement.scrollWidth, Math.min(...shown.map(size)), cut.length];
    """)
    assert wide <= width
    assert least >= 12
    assert cut == 0
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"].endswith("BeSent")]
    assert [url for url in urls if not url.startswith((address, "data:"))] == []


def test_the_search_finds_registers(browser, address):
    show_as(browser, "desktop")
    browser.get(f"{address}/index.html")
    browser.find_element(By.CSS_SELECTOR, "input[name=q]").send_keys("registers", Keys.ENTER)
    report = '#search-results li a[href*="docs/ptx-report.html"]'
    WebDriverWait(browser, 10).until(lambda _: browser.find_elements(By.CSS_SELECTOR, report))
    texts = "#search-results p.context"  # which come page by page
    WebDriverWait(browser, 10).until(
        lambda _: any("registers" in p.text for p in browser.find_elements(By.CSS_SELECTOR, texts))
    )
