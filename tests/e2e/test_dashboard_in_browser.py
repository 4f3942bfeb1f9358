"""The dashboard in a real browser, on a real server and learner: what a person sees and does."""

import re
import signal

import httpx
import pytest
from playwright.sync_api import expect
from server_process import Server, user

pytestmark = pytest.mark.usefixtures("learner")
TABS = ("Overview", "Learning", "Versions", "Interactions", "Playground")


def ask(page, question):
    page.get_by_label("Your message").fill(question)
    page.get_by_label("Your message").press("Enter")


def go(page, tab):
    page.get_by_role("navigation", name="Sections").get_by_role("link", name=tab).click()
    expect(page.locator(f".tab-{tab.lower()}")).to_be_visible()


def test_it_shows_the_serving_version_and_fresh_numbers(open_page):
    page = open_page()
    expect(page.locator(".serving")).to_contain_text("tiny@v")
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"updated [0-2] s ago"))
    for tab in TABS[1:]:
        go(page, tab)
        assert f"tab={tab.lower()}" in page.url
    page.go_back()
    expect(page.locator(".tab-interactions")).to_be_visible()
    go(page, "Versions")
    expect(page.get_by_role("region", name="Versions, newest first")).to_contain_text("serving")


def test_chat_score_and_watch_the_receipt_go_live(open_page):
    page = open_page(tab="playground")
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
    go(page, "Overview")
    expect(page.locator(".sao-score")).to_contain_text("mean of the last 2 scores")
    expect(page.locator(".sao-score .chart")).to_have_attribute("aria-label", re.compile("newest 2 scores"))
    go(page, "Learning")
    expect(page.locator(".sao-metrics")).to_contain_text("Tokens masked")
    expect(page.locator(".sao-ratios .histogram")).to_be_visible()
    expect(page.get_by_role("region", name="Swaps, newest first")).to_contain_text(f"v{version}")


def test_find_an_interaction_and_see_its_tokens_and_receipt(open_page):
    page = open_page(tab="playground")
    ask(page, "What is a zebra?")
    page.get_by_label("Bad answer").click()
    expect(page.get_by_role("status")).not_to_be_empty()
    go(page, "Interactions")
    form = page.get_by_role("search", name="Interactions")
    form.get_by_label("Text").fill("ZEBRA")
    form.get_by_label("User").fill("playground")
    form.get_by_role("button", name="Search").click()
    expect(page.locator(".results li")).to_have_count(1)
    assert "text=ZEBRA" in page.url
    page.get_by_role("link", name="What is a zebra?").click()
    expect(page.locator(".detail")).to_contain_text("What became of it")
    assert page.locator(".detail .tokens .tok").count() > 3
    expect(page.locator(".detail .legend")).to_contain_text("tokens 1–")
    expect(page.get_by_role("row", name=re.compile("^score 0.00"))).to_be_visible()
    # The same place in another tab, from its address alone; and back to the list by the browser's own button.
    other = open_page(path=page.url.split("/dashboard")[1])
    expect(other.locator(".detail")).to_contain_text("What is a zebra?")
    page.go_back()
    expect(page.locator(".results li")).to_have_count(1)
    form.get_by_label("Text").fill("nobody ever said this")
    form.get_by_role("button", name="Search").click()
    expect(page.locator(".results")).to_contain_text("No interaction matches")


def test_an_address_that_cannot_be_shown_as_it_is_says_so(open_page):
    page = open_page(path="?tab=versions&left=9998&right=-1")
    notices = page.locator(".notice")
    expect(notices.filter(has_text="left=9998 in the address was ignored: version 9998 has not been evaluated")).to_be_visible()
    expect(notices.filter(has_text="right=-1 in the address was ignored")).to_be_visible()
    go(page, "Interactions")
    expect(notices).to_have_count(0)
    page = open_page(path="?tab=interactions&version=abc&staus=failed")
    expect(page.locator(".notice")).to_have_count(2)
    expect(page.locator(".tab-interactions")).to_be_visible()


def test_scores_are_found_by_what_became_of_them_and_shown_with_their_comments(open_page, server):
    ids = []
    for temperature in (0, 1):
        asked = {"model": "tiny", "messages": user("Which scores were not used?"), "max_tokens": 2, "temperature": temperature}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, trust_env=False, timeout=120).raise_for_status().json()
        ids.append(answer["id"])
        score = {"completion_id": answer["id"], "value": 1, "comment": f"comment {temperature}"}
        httpx.post(f"{server.url}/v1/feedback", json=score, trust_env=False, timeout=60).raise_for_status()
    page = open_page()
    # The answers not used are listed too, and either list may come first: the server reads each every few seconds.
    without_effect = page.get_by_role("list", name="Scores without effect")
    without_effect.get_by_role("link", name=re.compile("sampled greedily")).click()
    expect(page.locator(".tab-interactions")).to_be_visible()
    expect(page.get_by_label("Not used because")).to_have_value("greedy_sampling")
    expect(page.get_by_label("Score's effect")).to_have_value("none")
    expect(page.get_by_label("Asked within")).to_have_value("day")
    page.locator(f".results a[data-key='{ids[0]}-0']").click()
    expect(page.locator(".detail")).to_contain_text("comment 0")
    expect(page.locator(".detail")).to_contain_text("Send a temperature above 0")
    page = open_page(path="?tab=interactions&receipt=not_trainable")
    expect(page.locator(f".results a[data-key='{ids[0]}-0']")).to_be_visible()
    expect(page.locator(f".results a[data-key='{ids[1]}-0']")).to_have_count(0)


def test_pause_and_resume(open_page):
    page = open_page()
    page.get_by_role("button", name="Pause learning").click()
    dialog = page.get_by_role("dialog", name="Pause learning?")
    dialog.get_by_label("Reason (optional)").fill("looking at version 1")
    dialog.get_by_role("button", name="Pause").click()
    expect(page.locator(".sao-learner")).to_contain_text("Looking at version 1. Serving and scoring go on")
    page.get_by_role("button", name="Resume learning").click()
    expect(page.get_by_role("button", name="Pause learning")).to_be_visible()
    expect(page.locator(".sao-learner")).to_contain_text("Waiting: ")


def test_roll_back_by_button_and_only_when_confirmed(open_page):
    page = open_page(tab="versions")
    back = page.get_by_role("button", name="Roll back to version 0")
    back.click()
    dialog = page.get_by_role("dialog", name="Roll back to version 0?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("region", name="Rollbacks, newest first")).to_contain_text("None yet")
    back.click()
    dialog.get_by_label("Reason (optional)").fill("a bad afternoon")
    onward = dialog.get_by_label("Go on learning from there at once")
    onward.click()
    expect(onward).to_be_checked()
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.locator(".serving")).to_contain_text("@v0")
    expect(page.get_by_role("region", name="Rollbacks, newest first")).to_contain_text("a bad afternoon")
    expect(page.locator("tr.now")).to_contain_text("v0")
    expect(page.get_by_role("region", name="Versions, newest first")).to_contain_text("left in a rollback")


def test_a_second_opinion_replaces_the_first_until_it_is_used(open_page):
    page = open_page(tab="playground")
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
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    place = page.get_by_role("navigation", name="Sections").get_by_role("link", name="Playground")
    for _ in range(12):
        page.keyboard.press("Tab")
        if place.evaluate("link => link === document.activeElement"):
            break
    assert place.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(place).to_have_attribute("aria-current", "page")
    expect(place).to_be_focused()  # the navigation was drawn anew
    page.get_by_label("Your message").focus()
    page.keyboard.type("Hello there")
    page.keyboard.press("Enter")
    page.get_by_label("Good answer").wait_for()
    for label in ("Bad answer", "Good answer"):
        while page.evaluate("document.activeElement.getAttribute('aria-label')") != label:
            page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    expect(page.get_by_label("Good answer")).to_have_attribute("aria-pressed", "true")


def test_a_new_chat_may_begin_while_an_answer_is_being_written(open_page, server):
    page = open_page(tab="playground")
    ask(page, "Tell me a long story.")
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Send")).to_be_enabled()
    ask(page, "Hello?")
    page.get_by_label("Good answer").wait_for()
    assert page.locator(".turn").count() == 2
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("width", [390, 768])
def test_nothing_sticks_out_on_a_narrow_screen(open_page, width):
    page = open_page(width=width, height=800)
    expect(page.locator(".serving")).to_contain_text("@v")
    for tab in TABS:
        go(page, tab)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    for tab in TABS:
        box = page.get_by_role("navigation", name="Sections").get_by_role("link", name=tab).bounding_box()
        assert box["x"] >= 0, tab
        assert box["x"] + box["width"] <= width, tab


def test_it_is_dark_where_the_visitor_wants_dark_and_by_its_own_switch(open_page):
    def brightness(page):
        return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))

    light, dark = open_page(scheme="light"), open_page(scheme="dark")
    assert brightness(light) > 700
    assert brightness(dark) < 100
    switch = dark.locator("#sao-theme")
    switch.click()
    expect(switch).to_have_text("Light")
    assert brightness(dark) > 700
    dark.reload()
    expect(dark.locator("#sao-theme")).to_have_text("Light")
    assert brightness(dark) > 700
    switch.click()
    expect(switch).to_have_text("Dark")
    assert brightness(dark) < 100


def test_numbers_grow_old_in_plain_sight_when_the_server_stands_still(open_page, server):
    page = open_page()
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"updated [0-2] s ago"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#sao-age.alarm")).to_have_text(re.compile(r"updated \d+ s ago"), timeout=15_000)
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(page.locator("#sao-age")).to_have_text(re.compile(r"updated [0-2] s ago"), timeout=20_000)


def test_an_open_page_does_not_hold_up_the_end_of_the_server(browser, tmp_path):
    server = Server(tmp_path / "data").start()
    page = browser.new_page()
    try:
        page.goto(f"{server.url}/dashboard")
        expect(page.locator("#sao-age")).to_have_text(re.compile(r"updated \d+ s ago"))
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
