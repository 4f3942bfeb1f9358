"""What the Interactions tab says of logged completions: their tokens, what became of them, and nothing that is not known."""

import pytest

from api.dashboard import interactions, tokens
from online_sao.service.interactions import LoggedChoice, LoggedPage
from online_sao.service.receipts import Receipt
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import ReceiptStatus

EVIL = "<script>alert(1)</script>"
PIECES = {1: b"Caf", 2: b"\xc3", 3: b"\xa9", 4: b" <b>", 5: None, 6: b"\xf0\x9f"}


def describe(token_id: int):
    raw = PIECES[token_id]
    return ("<|end|>", None) if raw is None else (raw.decode(errors="replace"), tuple(raw))


def choice(state="trained", masked=0.0, reason=None, receipts=(), **changes) -> LoggedChoice:
    fields = {
        "completion_id": "chatcmpl-1",
        "choice": 0,
        "user": "ada",
        "status": "completed",
        "stored": True,
        "messages": [{"role": "user", "content": EVIL}],
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "token_ids": [1, 2, 3, 4, 5],
        "behavior_logprobs": [-0.5] * 5,
        "version_spans": [[0, 3, 7], [3, 5, 8]],
        "text": "Café <b>",
        "policy_version": 8,
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "created_at": 100.0,
        "completed_at": 102.0,
    }
    trajectory = TrajectoryRow(state=state, reason=reason, reward=0.5, update_number=3, policy_lag=1, masked_fraction=masked)
    return LoggedChoice(InteractionRow(**{**fields, **changes}), trajectory, tuple(receipts))


def test_a_character_spread_over_tokens_stands_with_the_last_of_them() -> None:
    assert tokens.token_texts([1, 2, 3, 4, 5], describe) == ["Caf", "", "é", " <b>", "<|end|>"]
    assert tokens.token_texts([1, 6, 5], describe) == ["Caf", "", "\ufffd<|end|>"]
    assert tokens.token_texts([1, 6], describe) == ["Caf", "\ufffd"]


def test_tokens_are_tinted_by_the_version_that_wrote_them() -> None:
    drawn = tokens.answer(choice(), describe)
    assert drawn.count("tok t0") == 3 + 1  # three tokens, and the legend
    assert drawn.count("tok t1") == 2 + 1
    assert "v7</span> tokens 1–3" in drawn
    assert "v8</span> tokens 4–5" in drawn
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn


@pytest.mark.parametrize(
    ("given", "says", "underlined"),
    [
        (choice(), "all 5 tokens were trained on", True),
        (choice(masked=0.4), "DIS masked 40.0 % of the tokens (about 2 of 5). Which ones is not kept.", True),
        (choice("ready"), "Not trained on yet", False),
        (choice("expired"), "None of these tokens was trained on", False),
        (choice("not_trainable"), "None of these tokens was trained on", False),
    ],
)
def test_it_says_what_is_known_of_training_and_no_more(given, says, underlined) -> None:
    drawn = tokens.answer(given, describe)
    assert says in drawn
    assert ("tokens trained" in drawn) == underlined


def test_what_is_not_stored_or_not_known_is_said() -> None:
    assert "store: false" in tokens.answer(choice(stored=False, token_ids=None), describe)
    assert "once the engine is loaded" in tokens.answer(choice(), None)
    assert "not known yet" in tokens.answer(choice(token_ids=None), describe)


def test_the_detail_shows_fate_scores_and_reasons() -> None:
    receipt = Receipt(
        "fb-1",
        "feedback",
        "chatcmpl-1",
        0,
        "score",
        0.25,
        ReceiptStatus.NOT_TRAINABLE,
        "already_used",
        None,
        None,
        None,
        None,
        110.0,
        111.0,
        "Send it sooner.",
        f"too long {EVIL}",
    )
    drawn = interactions.detail([choice(receipts=[receipt])], describe, "?tab=interactions")
    for part in (
        "already used",
        "Send it sooner.",
        "too long &lt;script",
        "not trainable",
        "0.25",
        "An update was trained on it",
        "2000 ms",
        "ada",
        "9 asked, 5 answered",
        "&lt;script",
    ):
        assert part in drawn
    assert "<script" not in drawn
    assert "reward.metric_weights" not in drawn
    assert "exploration.neutralise_sampling" in interactions.detail([choice("not_trainable", reason="greedy_sampling")], describe, "?")
    assert "It expired unused: policy lag." in interactions.detail([choice("expired", reason="policy_lag")], describe, "?")


def test_a_list_leads_to_each_completion_and_to_older_ones() -> None:
    drawn = interactions.results(LoggedPage((choice(),), "41"), {"user": "ada", "tab": "interactions"})
    assert "?tab=interactions&amp;id=chatcmpl-1" in drawn
    assert "?tab=interactions&amp;user=ada&amp;after=41" in drawn
    assert "<script" not in drawn
    # In one piece: in a row of pieces the comma would stand alone.
    assert "<span>ada, v8, completed, <time" in drawn


def test_filters_by_outcome_stay_from_page_to_page_and_in_the_form() -> None:
    query = {"receipt": "live", "training": "trained", "reason": "store_false"}
    assert "receipt=live&amp;training=trained&amp;reason=store_false&amp;after=41" in interactions.results(LoggedPage((choice(),), "41"), query)
    form = interactions.search_form(query)
    for value in query.values():
        assert f'<option value="{value}" selected>' in form


@pytest.mark.parametrize(
    ("cursor", "query", "says"),
    [
        (None, {}, "Nothing has been asked yet"),
        (None, {"user": "nobody"}, "No interaction matches"),
        ("900", {"text": "zebra"}, "Search further back"),
    ],
)
def test_an_empty_list_says_what_to_do_next(cursor, query, says) -> None:
    assert says in interactions.results(LoggedPage((), cursor), query)


def test_the_form_keeps_what_was_asked_for_and_escapes_it() -> None:
    drawn = interactions.search_form({"text": '"><script>', "status": "failed"})
    assert "<script" not in drawn
    assert '<option value="failed" selected>' in drawn
