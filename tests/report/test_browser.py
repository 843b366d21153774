"""The page in a real browser: quiet console, no sideways scrolling, tables that sort and lists that filter."""

from __future__ import annotations

import pytest

from scala_lab.report.build import write_report
from scala_lab.report.chapter import Manifest
from tests.report.own_studies import forgotten_imports, records_of, write_five, write_study

SIZES = {"desktop": (1280, 900), "tablet": (820, 1180), "phone": (390, 844), "small phone": (320, 640)}
COLUMN = "[...document.querySelectorAll('#table-first tbody tr')].map(row => Number(row.cells[2].dataset.key))"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report with a wide table, a long word and a study that failed."""
    folder = tmp_path_factory.mktemp("browser")
    wide = "Tabulation('wide', pd.DataFrame([{'column_' + 'x' * 12 + str(n): n for n in range(30)}]), 'A' * 90)"
    names = "['run', *(task + ' ' + what for task in 'ab' for what in ('time', 'f1', 'score', 'steps'))]"
    grouped = (
        f"Tabulation('grouped', pd.DataFrame([[-n] * 7 + [n, -n] for n in (3, 1, 2)], columns={names}), 'Grouped')"
    )
    with forgotten_imports():
        references = (
            write_study(folder, "first", more=f"[{wide}, {grouped}]"),
            write_study(folder, "broken", claim="X3", before="raise ValueError('x' * 200)"),
            write_five(folder),
        )
        manifest = Manifest("embedded", studies=references, command="scala-lab study " + "long/" * 40 + "first.py")
        write_report(folder / "out", manifest, records_of(*references))
    return folder / "out" / "index.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_no_complaint_and_no_sideways_scrolling(browser, page, size, dark):
    browser.open(page, *SIZES[size], dark=dark)
    browser.value("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    width, inner = browser.value("[document.scrollingElement.scrollWidth, innerWidth]")
    assert inner == SIZES[size][0]
    assert width <= inner
    assert browser.complaints == []


def test_a_wide_table_scrolls_in_its_box(browser, page):
    browser.open(page, *SIZES["phone"])
    box = "document.querySelector('#table-first-wide .scroll')"
    assert browser.value(f"{box}.scrollWidth > 2 * {box}.clientWidth")


def test_a_column_sorts_by_keyboard_up_down_and_back(browser, page):
    browser.open(page, *SIZES["desktop"])
    original = browser.value(COLUMN)
    assert original != sorted(original)
    heading = "document.querySelectorAll('#table-first thead th')[2]"
    browser.value(f"{heading}.querySelector('button').focus()")
    seen = []
    for key, code, text in (("Enter", 13, "\r"), (" ", 32, " "), ("Enter", 13, "\r")):
        browser.press(key, code, text)
        seen.append((browser.value(f"{heading}.getAttribute('aria-sort')"), browser.value(COLUMN)))
    assert seen == [("ascending", sorted(original)), ("descending", sorted(original)[::-1]), (None, original)]
    assert browser.complaints == []


def test_a_column_under_a_shared_word_sorts_too(browser, page):
    browser.open(page, *SIZES["desktop"])
    assert browser.value("document.querySelector('#table-first-grouped thead th[colspan]').innerText") == "a"
    button = "document.querySelector('#table-first-grouped button[aria-label=\"b score\"]')"
    browser.value(f"{button}.click()")
    column = "[...document.querySelectorAll('#table-first-grouped tbody tr')].map(row => row.cells[7].innerText)"
    assert browser.value(column) == ["1", "2", "3"]


def test_sorting_one_column_after_another_marks_only_the_last(browser, page):
    browser.open(page, *SIZES["desktop"])
    for place in (0, 2):
        browser.value(f"document.querySelectorAll('#table-first thead button')[{place}].click()")
    marks = browser.value("[...document.querySelectorAll('#table-first thead th')].map(th => th.ariaSort)")
    assert marks == [None, None, "ascending"]


def test_the_list_of_runs_is_folded_and_filters_by_every_word(browser, page):
    browser.open(page, *SIZES["desktop"])
    assert not browser.value("document.querySelector('#run-list').checkVisibility()")
    browser.value("document.querySelector('#run-list').closest('details').open = true")
    shown = "[...document.querySelectorAll('#run-list tbody tr')].filter(row => row.checkVisibility()).length"
    runs = browser.value(shown)
    for words, left in (("LAMB b512", 2), ("lamb mini-sst2-b512-s1", 1), ("nothing like it", 0), ("", runs)):
        browser.value(
            "(() => { const box = document.querySelector('[data-filter=run-list]');"
            f"box.value = {words!r}; box.dispatchEvent(new Event('input')); }})()"
        )
        assert browser.value(shown) == left
        assert browser.value("document.querySelector('[data-count=run-list]').textContent") == f"{left} of {runs}"


def test_a_verdict_can_be_read_without_colour(browser, page):
    browser.open(page, *SIZES["desktop"])
    assert browser.value("document.querySelector('#claim-X1 .badge').innerText.trim()") == "✓ supported"


def test_the_figure_is_in_the_page_itself(browser, page, tmp_path):
    alone = tmp_path / "alone.html"
    alone.write_bytes(page.read_bytes())
    browser.open(alone, *SIZES["desktop"])
    figure = "document.querySelector('#figure-first img')"
    assert browser.value(f"{figure}.decode().then(() => {figure}.naturalWidth)") > 300
    assert browser.complaints == []


SHOWN = "[...document.querySelectorAll('.claim')].filter(one => one.checkVisibility()).map(one => one.id.slice(6))"


def test_claims_are_filtered_by_verdict_with_the_keyboard(browser, page):
    browser.open(page, *SIZES["desktop"])
    everything = browser.value(SHOWN)
    assert everything == ["C1", "C2", "C4", "C5", "C6", "C10", "X1"]
    for verdict, left in (
        *(("supported", ["C1", "X1"]), ("no effect of the claimed size", ["C2"]), ("reversed", ["C10"])),
        *(("undecided", ["C4"]), ("not testable here", ["C5", "C6"]), ("", everything)),
    ):
        button = f"document.querySelector('.verdicts button[data-show=\"{verdict}\"]')"
        browser.value(f"{button}.focus()")
        browser.press("Enter", 13, "\r")
        assert browser.value(SHOWN) == left
        assert browser.value(f"{button}.ariaPressed") == "true"
        assert browser.value("document.querySelectorAll('.verdicts [aria-pressed=true]').length") == 1
        assert browser.value("document.querySelector('.verdicts output').textContent") == f"{len(left)} of 7"


def test_link_to_a_claim_that_is_filtered_out_shows_it(browser, page):
    browser.open(page, *SIZES["desktop"])
    browser.value("document.querySelector('.verdicts [data-show=reversed]').click()")
    browser.value(
        "new Promise(go => { addEventListener('hashchange', go, {once: true}); location.hash = 'claim-C1'; })"
    )
    assert "C1" in browser.value(SHOWN)


def test_without_scripts_claims_are_a_plain_list(browser, page):
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page, *SIZES["phone"])
        assert browser.value(SHOWN) == ["C1", "C2", "C4", "C5", "C6", "C10", "X1"]
        assert not browser.value("document.querySelector('.verdicts').checkVisibility()")
        assert (
            browser.value("document.querySelector('#figure-first a.zoom').getAttribute('href')") == "figures/first.png"
        )
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_figure_opens_large_and_closes_again(browser, page, size):
    """Letters of the forest plot are unreadable in the width of a phone: a tap shows them, moved with a finger."""
    browser.open(page, *SIZES[size])
    figure, large = "document.querySelector('#figure-claims-forest img')", "document.querySelector('dialog.large')"
    small = browser.value(f"{figure}.decode().then(() => {figure}.clientWidth)")
    browser.value(f"{figure}.closest('a').focus()")
    browser.press("Enter", 13, "\r")
    assert browser.value(f"{large}.open")
    image = f"{large}.querySelector('img')"
    assert browser.value(f"{image}.decode().then(() => {image}.clientWidth)") > (3 if size == "phone" else 1.2) * small
    assert browser.value(f"{large}.scrollWidth > {large}.clientWidth")
    assert browser.value("document.scrollingElement.scrollWidth <= innerWidth")
    browser.press("Escape", 27)
    assert not browser.value(f"{large}.open")
    assert browser.complaints == []
