"""The quality page in a real browser: what a person sees, in light and dark, wide and narrow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from pcaplake.spark_jobs.quality.page import render_page
from pcaplake.spark_jobs.quality.report import SECTIONS, TOTAL, QualityFinding
from tests.spark_jobs.drives import DAY
from tests.spark_jobs.quality.pages import made

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, NARROW = (1100, 900), (360, 780)
LONG = "s3://raw/" + "a-folder-without-any-place-to-break/" * 6 + "x.pcap: <i>what</i> & why"
ROWS = [
    *(
        QualityFinding(section="tables", kind="rows", table=name, count=count)
        for name, count in [("captures", 4), ("packets", 98_765)]
    ),
    QualityFinding(section="tables", kind=TOTAL, count=98_769),
    *(
        QualityFinding(section="days", kind="rows", date=DAY, vehicle_id=f"v{no}", count=1000 * no)
        for no in range(1, 12)
    ),
    QualityFinding(section="days", kind=TOTAL, count=66_000),
    QualityFinding(section="quarantined", kind=TOTAL, count=1),
    QualityFinding(section="quarantined", kind="NotACapture", count=1, capture_id="c", vehicle_id="v1", detail=LONG),
    QualityFinding(section="gaps", kind=TOTAL, count=1),
    QualityFinding(
        section="gaps", kind="packets missing", count=3, capture_id="d", vehicle_id="v2", detail="s3://raw/d.pcap: 4-6"
    ),
    QualityFinding(section="duplicates", kind=TOTAL, count=0),
    QualityFinding(section="faults", kind="ethernet: short_header", count=12, detail="in 2 captures"),
    QualityFinding(section="faults", kind=TOTAL, count=12),
    QualityFinding(section="late", kind="within an hour", count=3),
    QualityFinding(section="late", kind=TOTAL, count=0),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail("chromium and chromium-driver are missing: .ci/tools installs them")
        pytest.skip("no chromium with its driver here: `make .venv/.tools` installs them")
    options = Options()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "quality.html"
    file.write_text(render_page(made(ROWS, "s3://lake/drives")), encoding="utf-8")
    return file.as_uri()


def show(browser: Any, address: str, size: tuple[int, int], scheme: str = "light") -> list[str]:
    """Open it anew -> what was fetched."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("performance")
    browser.get(address)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_nothing_is_fetched_nothing_complains_nothing_sticks_out(
    browser: Any, address: str, size: tuple[int, int], scheme: str
) -> None:
    assert show(browser, address, size, scheme) == [address]
    assert browser.get_log("browser") == []
    wide = browser.execute_script("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1], "one has to scroll sideways"
    for svg in browser.find_elements(By.TAG_NAME, "svg"):
        assert svg.size["width"] > 500, "too small to read"
        assert 40 < svg.size["height"] < 700


def test_what_a_person_sees(browser: Any, address: str) -> None:
    show(browser, address, WIDE)
    assert browser.title == "Quality of s3://lake/drives"
    assert browser.find_element(By.TAG_NAME, "h1").text == "Quality of s3://lake/drives"
    assert [one.text for one in browser.find_elements(By.TAG_NAME, "h2")] == list(SECTIONS.values())
    assert browser.find_element(By.CLASS_NAME, "verdict").text == "✗ Rows are missing or duplicate: see below."
    cards = {
        card.find_element(By.TAG_NAME, "span").text: card.find_element(By.TAG_NAME, "strong").text
        for card in browser.find_elements(By.CSS_SELECTOR, ".cards li")
    }
    assert (cards["captures"], cards["rows"], cards["duplicate rows"]) == ("4", "98,769", "0")
    assert cards["captures with gaps in packet numbers"] == "✗ 1"
    shown = {one.get_attribute("id"): one.text for one in browser.find_elements(By.TAG_NAME, "section")}
    assert "4-6" in shown["gaps"]
    assert "<i>what</i> & why" in shown["quarantined"]
    assert shown["duplicates"].endswith("None.")
    assert [one.get_attribute("aria-label") for one in browser.find_elements(By.TAG_NAME, "svg")] == [
        "Rows in each table",
        "Rows a day, by vehicle",
        "Faults by layer and reason",
        "Captures by time from last packet to arrival",
    ]
    assert "98,765" in browser.find_element(By.CSS_SELECTOR, "#tables svg").text
    assert "others" in browser.find_element(By.CSS_SELECTOR, "#days svg").text


def test_a_card_leads_to_its_section(browser: Any, address: str) -> None:
    show(browser, address, WIDE)
    browser.find_element(By.CSS_SELECTOR, ".cards a[href='#late']").click()
    top = browser.execute_script("return document.getElementById('late').getBoundingClientRect().top")
    assert top < WIDE[1]


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)` or `rgba(...)` (WCAG 2.2)."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(browser: Any, address: str, scheme: str) -> None:
    """Text on its background has a contrast of 4.5 at the least, bars one of 3 (WCAG 2.2, AA)."""
    show(browser, address, WIDE, scheme)
    seen = browser.execute_script("""
        const style = one => getComputedStyle(one);
        const behind = one => { for (; one; one = one.parentElement) {
            const c = style(one).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c } return 'rgb(255, 255, 255)' };
        const texts = [...document.querySelectorAll('h1, h2, p, td, th, strong, span, figcaption')]
            .map(one => [one.tagName + ' ' + one.className, style(one).color, behind(one), 4.5]);
        const labels = [...document.querySelectorAll('svg text')]
            .map(one => ['label', style(one).fill, behind(one.closest('figure')), 4.5]);
        const shapes = [...document.querySelectorAll('svg g[id*="patch"] path')]
            .map(one => ['bar', style(one).fill, behind(one.closest('figure')), 3]).filter(one => one[1] !== 'none');
        return [...texts, ...labels, ...shapes];""")
    assert {what for what, *_ in seen} >= {"label", "bar", "H1 "}
    assert (luminance(behind := seen[0][2]) < 0.1) == (scheme == "dark"), behind
    for what, colour, background, least in seen:
        light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, (what, colour, background)
