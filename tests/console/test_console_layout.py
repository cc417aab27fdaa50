"""The console's pages on a telephone and on a desk: nothing is cut, hidden or pushed away."""

from __future__ import annotations

from tests.console.browser import Browser
from tests.console.conftest import LONG, go

PAGES = (
    "#/",
    "#/topics",
    "#/topics/orders/records",
    f"#/topics/{LONG}/records",
    "#/topics/orders/partitions",
    "#/topics/orders/segments",
    "#/topics/orders/configs",
    "#/topics/orders/groups",
    "#/groups",
    "#/groups/billing",
    "#/queries",
    "#/transactions",
    "#/brokers",
    "#/health",
)
BOX = "(selector => document.querySelector(selector).getBoundingClientRect())"
CUT = "[...document.querySelectorAll('.facts dt, .facts dd')].filter((one) => one.scrollWidth > one.clientWidth).length"
BEYOND = (
    "[...document.querySelectorAll('main td')].filter((one) => one.getBoundingClientRect().right > innerWidth).length"
)


# Promise: console.md#see-how-a-log-is-doing
def test_each_page_fits_its_width(at_width: Browser) -> None:
    """It begins near the top, has Find, does not scroll sideways, and no tile is cut."""
    for to in PAGES:
        go(at_width, to)
        assert at_width.value("document.documentElement.scrollWidth <= innerWidth"), to
        assert at_width.value(f"{BOX}('main h1').top") < 160, to
        assert at_width.value(f"{BOX}('.find').width") > 40, to
        assert at_width.value(CUT) == 0, to
        assert at_width.value("innerWidth") > 640 or at_width.value(BEYOND) == 0, to


# Promise: console.md#read-records
def test_key_and_value_are_on_the_screen(at_width: Browser) -> None:
    """Also those of a record that is open."""
    go(at_width, "#/topics/orders/records")
    at_width.until("document.querySelectorAll('tr.row').length === 30")
    for cell in ("td.key", "td.clip:last-child"):
        assert at_width.value(f"{BOX}('tr.row {cell}').right <= innerWidth && {BOX}('tr.row {cell}').width > 40")
    at_width.press("j", "Enter")
    at_width.until("document.querySelector('tr.detail pre')")
    assert at_width.value(f"{BOX}('tr.detail .block').right <= innerWidth")
    assert at_width.value(f"{BOX}('tr.detail dl.list').right <= innerWidth")


# Promise: console.md#read-records
def test_columns_of_a_typed_topic_are_on_the_screen(at_width: Browser) -> None:
    """On a telephone one below the other; times are not broken into letters."""
    go(at_width, "#/topics/typed/records")
    at_width.until("document.querySelectorAll('tr.row').length === 4")
    assert at_width.value(f"{BOX}('tr.row td').height < 50")
    assert at_width.value("innerWidth") > 640 or at_width.value(BEYOND) == 0


def test_words_of_numbers_are_short(window: Browser) -> None:
    """A tile has one unit of time, and one segment is not several."""
    since = "since(new Date(Date.now() - 754000).toISOString(), 1)"
    assert window.value(f"import('/console/format.js').then(({{ since }}) => {since})") == "12 min ago"
    go(window, "#/topics/typed/segments")
    window.until("/\\b1 segment$/m.test(document.querySelector('main').innerText)")


# Promise: console.md#use-the-keyboard
def test_find_leads_to_a_topic(at_width: Browser) -> None:
    """By a click, where there is no keyboard."""
    go(at_width, "#/")
    at_width.value("document.querySelector('.find').click()")
    at_width.until("document.activeElement.id === 'find'")
    at_width.send("Input.insertText", text="dead-l")
    at_width.until(f"document.querySelector('.choices a')?.textContent.startsWith({LONG!r})")
    at_width.value("document.querySelector('.choices a').click()")
    at_width.until(f"location.hash === '#/topics/{LONG}'")
