"""What several tests use."""

import shutil

import pytest


@pytest.fixture(scope="module")
def browser():
    """A real browser; without one, the tests that ask for it are skipped."""
    reason = "needs selenium (requirements-dev.txt)"
    webdriver = pytest.importorskip("selenium.webdriver", reason=reason)
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    service = shutil.which("chromedriver")
    if chromium is None or service is None:
        pytest.skip("needs chromium and chromedriver (apt-get install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,1100"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(service))
    yield driver
    driver.quit()
