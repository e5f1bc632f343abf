"""The HTML page in a real browser: keyboard, sorting, filtering, the heat map."""

import json

import pytest
from click.testing import CliRunner

from codegen.core.manifest import Kernel
from codegen.core.ptxas_rows import Row, csv_text
from tests.ptx_report.pages import example
from tests.ptx_report.project import symbol
from tests.ptx_report.samples import DATA
from tools.ptx_report.__main__ import main
from tools.ptx_report.diff import compare
from tools.ptx_report.page import html_text
from tools.ptx_report.report import Report, read

pytest.importorskip("selenium.webdriver", reason="needs selenium (requirements-dev)")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait


@pytest.fixture
def page(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html_text(example()), encoding="utf-8")
    browser.get_log("performance")
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []  # no error, nothing refused


def kernels(page):
    return [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#table td.kernel")]


def type_filter(page, field, text):
    field = page.find_element(By.ID, field)
    field.clear()
    before = page.find_element(By.ID, "count").text
    field.send_keys(text)
    WebDriverWait(page, 5).until(lambda _: page.find_element(By.ID, "count").text != before)


def press(page, *keys):
    page.switch_to.active_element.send_keys(*keys)


def test_it_is_self_contained(page):
    urls = [
        json.loads(entry["message"])["message"]["params"]["request"]["url"]
        for entry in page.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in urls) == 1


def test_rows_come_worst_first(page):
    assert len(kernels(page)) == 9
    assert kernels(page)[0] == "flash_forward.sm80.bf16-d128-r128"
    assert page.find_element(By.ID, "count").text == "9 of 9"


def test_text_from_a_log_is_text(page):
    assert "<b>&amp;</b><script>alert(1)</script>" in kernels(page)


def test_headings_sort_from_the_keyboard(page):
    page.find_element(By.CSS_SELECTOR, "[data-sort=used_registers]").send_keys(Keys.ENTER)
    heading = page.find_element(By.CSS_SELECTOR, "th[aria-sort]")
    assert heading.get_attribute("aria-sort") == "descending"
    registers = [
        int(c.text) for c in page.find_elements(By.CSS_SELECTOR, "#table td:nth-child(3)") if c.text
    ]
    assert registers == sorted(registers, reverse=True)
    press(page, Keys.ENTER)  # the focus stayed on the heading
    assert (
        page.find_element(By.CSS_SELECTOR, "th[aria-sort]").get_attribute("aria-sort")
        == "ascending"
    )
    rows = page.find_elements(By.CSS_SELECTOR, "#table td:nth-child(3)")
    assert rows[-1].text == ""  # what is unknown comes last either way


@pytest.mark.parametrize(
    ("text", "count"), [("D128-causal", 2), ("no such kernel", 0), ("incomplete", 1)]
)
def test_search(page, text, count):
    press(page, "/")
    assert page.switch_to.active_element.get_attribute("id") == "search"
    type_filter(page, "search", text)
    assert len(kernels(page)) == count
    press(page, Keys.ESCAPE)
    assert len(kernels(page)) == 9


@pytest.mark.parametrize(
    "text",
    [
        "d_head == 128",
        "d_head == 128 and used_registers > 200",
        "spill_bytes > 0 and causal",
        "not causal or B_r == 64 and d_head != 64",
        "64 < B_r <= 128 and not (causal or d_head == 64)",
        "d_head in [32, 2 ** 6] and family == 'flash_forward'",
        "arch == 'sm_80' and target == 'sm80'",
        "(d_head if causal else 0) == 128",
        "(B_r - 1) // 32 % 2 == 1 and -7 // 2 == -4 and -7 % 3 == 2",
        "min(d_head, B_r) == 64 and max(d_head, B_r) / 2 == 64.0",
        "ceil_div(threads, 100) == 2 and is_pow2(threads) and log2(threads) == 7",
        "smem_bytes > 40_000 and occupancy < 0.5".replace("_000", "000"),
        "threads == 128 if spilled else not complete",
        "not complete",
    ],
)
def test_where_selects_what_the_command_line_does(page, text):
    expected = [row.kernel_config for row in example().where(text).rows]
    assert 0 < len(expected) < 9
    type_filter(page, "where", text)
    assert sorted(kernels(page)) == sorted(expected)
    assert page.find_element(By.ID, "wrong").text == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("d_hed == 128", "unknown name 'd_hed'"),
        ("d_head == ", "an expression ends too early"),
        ("d_head = 128", "'=' is not expected here"),
        ("d_head / 0 == 1", "division by zero"),
        ("family > 3", "flash_forward is not a number"),
    ],
)
def test_a_where_that_is_wrong_says_so(page, text, said):
    type_filter(page, "where", text)
    assert page.find_element(By.ID, "wrong").text == said
    assert kernels(page) == []


def cells(page):
    return page.find_elements(By.CSS_SELECTOR, "#map figure:first-child td button")


def test_heat_map_over_any_two_parameters(page):
    assert [c.text.split("\n")[0] for c in cells(page)] == ["96", "168", "128", "255"]
    assert page.find_element(By.ID, "beside").get_attribute("value") == "spill_bytes"
    assert len(page.find_elements(By.CSS_SELECTOR, "#map figure")) == 2
    Select(page.find_element(By.ID, "figure")).select_by_value("spill_bytes")
    Select(page.find_element(By.ID, "down")).select_by_value("causal")
    Select(page.find_element(By.ID, "across")).select_by_value("B_r")
    assert [c.text.split("\n")[0] for c in cells(page)] == ["0", "64", "0", "32"]
    label = cells(page)[1].get_attribute("aria-label")
    assert label == "causal false, B_r 128: 64 spilled bytes, 2 kernels"
    colours = {
        c.text.split("\n")[0]: c.value_of_css_property("background-color") for c in cells(page)
    }
    assert len(set(colours.values())) == 3


def test_the_first_map_holds_every_kernel_and_its_colours_begin_at_zero(browser, tmp_path):
    report = example()
    key = "block_sparse.sm80.a64-fixed"
    row = report.rows[0]._replace(
        symbol=symbol(key), used_registers=250, spill_stores=4, spill_loads=4
    )
    report.rows = [*report.rows, row]
    report.manifest.kernels[key] = Kernel(
        key=key, parameters={"attention_dim": 64}, derived={}, symbol="", file=""
    )
    path = tmp_path / "two.html"
    path.write_text(html_text(report), encoding="utf-8")
    browser.get(path.as_uri())
    first, second = browser.find_elements(By.CSS_SELECTOR, "#map figure")
    heads = [th.text for th in first.find_elements(By.CSS_SELECTOR, "tbody th")]
    assert {"block_sparse.sm80", "flash_forward.sm80"} <= set(heads)
    shown = [b.text.split("\n")[0] for b in second.find_elements(By.CSS_SELECTOR, "td button")]
    assert "8" in shown  # the spills of the kernel that has none of the others' parameters
    for figure in (first, second):
        assert figure.find_element(By.CSS_SELECTOR, ".legend").text.startswith("0")
    assert browser.get_log("browser") == []


def test_heat_map_from_the_keyboard(page):
    cells(page)[0].send_keys(Keys.ARROW_DOWN)
    press(page, Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.text.startswith("255")
    press(page, Keys.ENTER)
    assert len(kernels(page)) == 2
    assert all("d128" in kernel and "r128" in kernel for kernel in kernels(page))
    assert page.switch_to.active_element.get_attribute("aria-pressed") == "true"
    press(page, Keys.ENTER)
    assert len(kernels(page)) == 9


def test_rows_from_the_keyboard(page):
    page.find_element(By.CSS_SELECTOR, "#table tbody tr").send_keys(Keys.ARROW_DOWN)
    press(page, Keys.ENTER)
    detail = page.find_element(By.ID, "detail").text
    assert "_ZN10kernelmint" in detail
    assert "d_head = 128" in detail
    assert "Registers are spilled" in detail


def test_every_control_is_reached_with_the_tab_key(page):
    reached = set()
    page.find_element(By.TAG_NAME, "body").click()
    for _ in range(40):
        press(page, Keys.TAB)
        element = page.switch_to.active_element
        reached.add(element.get_attribute("id") or element.tag_name)
    assert {
        "figure",
        "beside",
        "down",
        "across",
        "fold",
        "search",
        "where",
        "arch",
        "spilled",
        "wide",
    } <= reached
    assert {"button", "tr"} <= reached


def test_parameters_as_columns(page):
    page.find_element(By.ID, "wide").send_keys(Keys.SPACE)
    headings = [b.text for b in page.find_elements(By.CSS_SELECTOR, "#table th button")]
    assert headings[1:4] == ["d_head", "causal", "B_r"]


def shown(browser, tmp_path, text, width=1280):
    """Opens a page, as wide as a screen."""
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    return browser


def chosen(page, name, value):
    Select(page.find_element(By.ID, name)).select_by_value(value)


def texts(page, selector="#table tbody tr"):
    return [node.text for node in page.find_elements(By.CSS_SELECTOR, selector)]


# Two builds


def two_builds():
    """The example before and after: one kernel spills, one has fewer registers, one is gone."""
    new = example()
    spills, better, gone, *rest = new.rows
    old = [spills._replace(spill_stores=0, spill_loads=0, code="1"), gone, *rest]
    old.append(better._replace(used_registers=better.used_registers + 8))
    spills = spills._replace(spill_stores=8, spill_loads=12, code="2")
    new.rows = [spills, better, *rest]
    return new, compare(old, new.rows, new.occupancy)


def test_two_builds_show_what_changed(browser, tmp_path):
    page = shown(browser, tmp_path, html_text(*two_builds(), "main.csv"))
    assert "against main.csv" in page.find_element(By.TAG_NAME, "header").text
    assert page.find_element(By.ID, "changes").text.startswith("1 worse, 1 removed, 1 better")
    worse, removed, better = texts(page)
    assert [part for part in ("worse", "the code changed", "+20") if part not in worse] == []
    assert "removed" in removed
    assert [part for part in ("better", "-8") if part not in better] == []
    assert page.find_element(By.ID, "count").text == "3 of 9"
    page.find_element(By.CSS_SELECTOR, "#table tbody tr").click()
    assert "worse: spill_bytes 0 -> 20" in page.find_element(By.ID, "detail").text
    chosen(page, "change", "")
    assert page.find_element(By.ID, "count").text == "9 of 9"
    chosen(page, "change", "same")
    assert page.find_element(By.ID, "count").text == "6 of 9"
    assert page.get_log("browser") == []


def test_one_build_has_no_changes_to_select(page):
    assert not page.find_element(By.ID, "change").is_displayed()


@pytest.mark.parametrize("command", ["diff", "--diff"])
def test_the_commands_write_a_page_of_both(tmp_path, command):
    row = Row("k", arch="sm_90", used_registers=100, spill_stores=0, spill_loads=0)
    old, new, page = (tmp_path / name for name in ("old.csv", "new.csv", "p.html"))
    old.write_text(csv_text([row]))
    new.write_text(csv_text([row._replace(used_registers=120)]))
    operands = ["diff", old, new] if command == "diff" else [new, "--diff", old]
    result = CliRunner().invoke(main, [*map(str, operands), "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert '["used_registers",100,120]' in page.read_text()
    assert f"against {old}" in page.read_text()


# The address


def test_the_address_holds_what_is_selected(page):
    type_filter(page, "where", "d_head == 128 and causal")
    chosen(page, "figure", "stack_frame")
    page.find_element(By.CSS_SELECTOR, "[data-sort=used_registers]").click()
    cells(page)[0].click()
    expected = kernels(page)
    address = page.current_url
    assert "where=d_head+%3D%3D+128+and+causal" in address
    page.get("about:blank")
    page.get(address)
    assert kernels(page) == expected
    assert len(expected) == 1
    assert page.find_element(By.ID, "figure").get_attribute("value") == "stack_frame"
    assert page.find_element(By.CSS_SELECTOR, "th[aria-sort]").text.startswith("regs")
    assert page.find_element(By.CSS_SELECTOR, "[aria-pressed=true]")
    page.get(address.partition("#")[0] + "#arch=sm_90")  # an address that is typed
    assert len(kernels(page)) == 1
    page.get(address.partition("#")[0] + "#view=none&sort=none&arch=none")  # of another page
    assert len(kernels(page)) == 9


# Views


def test_architectures_templates_and_totals(browser, tmp_path):
    report = read([str(DATA / "binaries/setmaxnreg.fatbin")])
    page = shown(browser, tmp_path, html_text(report))
    assert "≤ 19" in texts(page)[0]  # 12 warps of 168 registers, of 64
    chosen(page, "view", "architecture")
    first, *_ = kernels(page)
    assert first.startswith("void consume<200>(")
    assert texts(page, "#table td.bad") == ["168 272? 14,720", "32 0? 3,456"]
    assert "sm_100a: 272 bytes of stack" in texts(page)[0]
    chosen(page, "view", "template")
    assert texts(page)[0].startswith("consume\nsm_100a 1: 200 168 ? 272")
    chosen(page, "view", "total")
    assert "100" in texts(page)[0]
    type_filter(page, "where", "arch == 'sm_90a'")
    sums = dict(line.split("\n") for line in texts(page))
    assert sums["setmaxnreg.fatbin"].startswith("file 4 ")
    assert set(sums) == {"setmaxnreg.fatbin", "sm_90a", "consume", "local_array"}
    assert page.get_log("browser") == []


# The screen


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", ["kernels", "architecture", "template", "total"])
def test_columns_fit_the_screen(browser, tmp_path, width, view):
    report = read([str(DATA / "binaries/setmaxnreg.fatbin")])
    warned = report.rows[0]._replace(kind="kernel", spill_stores=1 << 20, spill_loads=1 << 20)
    warned = warned._replace(warnings=("w",), c75=("C7510", "C7508?"), compile_time_ms=12345.0)
    report.rows.append(warned._replace(name=f"void a::{'name' * 200}<int>()", barriers=16))
    page = shown(browser, tmp_path, html_text(report), width)
    chosen(page, "view", view)
    wide = page.execute_script("""
        const rows = document.getElementById("rows");
        return [
          document.documentElement.scrollWidth - innerWidth, rows.scrollWidth - rows.clientWidth
        ];
    """)
    assert max(wide) <= 0


@pytest.mark.slow
def test_a_value_stands_once_however_many_rows_have_it():
    """A large library has 140,000 rows, and names of thousands of characters."""
    row = Row("k", "object", used_registers=40, name=f"void {'n' * 4000}<int>()")
    rows = [row._replace(arch=f"sm_{a}", source=f"{n}.so") for a in (80, 90) for n in range(500)]
    assert len(html_text(Report(rows, inputs=["k"]))) < 120_000


@pytest.mark.slow
def test_foreign_kernels_alone_have_a_page(browser, tmp_path):
    report = example()
    report.rows = [row for row in report.rows if row.key is None]
    path = tmp_path / "foreign.html"
    path.write_text(html_text(report), encoding="utf-8")
    browser.get(path.as_uri())
    assert len(kernels(browser)) == 1
    assert browser.get_log("browser") == []
