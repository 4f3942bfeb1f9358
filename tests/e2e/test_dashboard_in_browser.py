"""The dashboard in a real browser, on a real server and learner: what a person sees and does."""

import re
import signal

import pytest
from playwright.sync_api import expect
from server_process import Server

pytestmark = pytest.mark.usefixtures("learner")


def ask(page, question):
    page.get_by_label("Your message").fill(question)
    page.get_by_label("Your message").press("Enter")


def test_it_shows_the_serving_version_and_fresh_numbers(open_page):
    page = open_page()
    expect(page.locator(".serving")).to_contain_text("tiny@v")
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"numbers [0-2] s old"))
    expect(page.get_by_role("region", name="Versions, newest first")).to_contain_text("serving")


def test_chat_score_and_watch_the_receipt_go_live(open_page):
    page = open_page()
    for number, question in enumerate(("Tell me about your morning.", "And your evening?")):
        ask(page, question)
        thumb = page.get_by_label("Good answer").nth(number)
        thumb.wait_for()
        assert page.locator(".turn:not(.mine) .bubble").nth(number).inner_text().strip()
        thumb.click()
        expect(thumb).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_role("status").nth(number)).not_to_be_empty()
    for number in range(2):
        expect(page.get_by_role("status").nth(number)).to_have_text(re.compile(r"live in version \d+"), timeout=120_000)
    version = re.search(r"\d+", page.get_by_role("status").first.inner_text())[0]
    expect(page.locator(".serving")).to_contain_text(f"@v{version}")
    expect(page.locator(".sao-score")).to_contain_text("mean of the last 2 scores")
    expect(page.locator(".sao-update")).to_contain_text("Tokens masked")
    expect(page.get_by_role("region", name="Swaps, newest first")).to_contain_text(f"v{version}")


def test_a_second_opinion_replaces_the_first_until_it_is_used(open_page):
    page = open_page()
    ask(page, "Say something short.")
    good, bad = page.get_by_label("Good answer"), page.get_by_label("Bad answer")
    good.wait_for()
    good.click()
    expect(good).to_have_attribute("aria-pressed", "true")
    bad.click()
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(good).to_have_attribute("aria-pressed", "false")


def test_it_works_by_keyboard_alone(open_page):
    page = open_page()
    page.get_by_label("Your message").focus()
    page.keyboard.type("Hello there")
    page.keyboard.press("Enter")
    page.get_by_label("Good answer").wait_for()
    for label in ("Bad answer", "Good answer"):
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == label
    page.keyboard.press("Space")
    expect(page.get_by_label("Good answer")).to_have_attribute("aria-pressed", "true")


def test_a_new_chat_may_begin_while_an_answer_is_being_written(open_page, server):
    page = open_page()
    ask(page, "Tell me a long story.")
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Send")).to_be_enabled()
    ask(page, "Hello?")
    page.get_by_label("Good answer").wait_for()
    assert page.locator(".turn").count() == 2
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_sticks_out_on_a_narrow_screen(open_page, width):
    page = open_page(width=width, height=800)
    expect(page.locator(".serving")).to_contain_text("@v")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = {name: page.locator(f".sao-{name}").bounding_box() for name in ("score", "play", "flow")}
    assert boxes["score"]["y"] < boxes["play"]["y"] < boxes["flow"]["y"]


def test_it_is_dark_where_the_visitor_wants_dark(open_page):
    def brightness(page):
        return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))

    assert brightness(open_page(scheme="light")) > 700
    assert brightness(open_page(scheme="dark")) < 100


def test_numbers_grow_old_in_plain_sight_when_the_server_stands_still(open_page, server):
    page = open_page()
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"numbers [0-2] s old"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#sao-age.alarm")).to_have_text(re.compile(r"numbers [5-9] s old"), timeout=15_000)
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"numbers [0-2] s old"), timeout=20_000)


def test_an_open_page_does_not_hold_up_the_end_of_the_server(browser, tmp_path):
    server = Server(tmp_path / "data").start()
    page = browser.new_page()
    try:
        page.goto(f"{server.url}/dashboard")
        expect(page.locator("#sao-age")).to_have_text(re.compile(r"numbers \d+ s old"))
        assert server.stop() < 10
    finally:
        page.close()
        if server.process.poll() is None:
            server.kill()
    assert server.process.returncode == 0
    assert "Traceback" not in server.log()


def test_the_api_docs_load_from_this_server_alone(open_page, server):
    page = open_page()
    page.goto(server.url + page.get_by_role("link", name="API docs").get_attribute("href"))
    page.locator(".opblock").first.wait_for()
