"""Addresses of places: what is understood, and that nothing is ignored in silence."""

import pytest

from api.dashboard.markup import notices
from api.dashboard.places import KNOWN, TITLES, understood


@pytest.mark.parametrize(
    "query",
    [
        {"tab": "versions", "left": "0", "right": "12", "before": "30"},
        {"tab": "interactions", "text": "zebra", "user": "ada", "version": "3", "status": "failed", "receipt": "live", "training": "ready"},
        {"tab": "interactions", "reason": "store_false", "after": "41", "find": "chatcmpl-1"},
        {"tab": "interactions", "id": "chatcmpl-1"},
        {"tab": "playground"},
    ],
)
def test_what_is_known_is_kept_and_nothing_is_said(query):
    assert understood(query) == (query, ())


@pytest.mark.parametrize(
    ("query", "place", "says"),
    [
        ({}, {"tab": "overview"}, []),
        ({"tab": "nope"}, {"tab": "overview"}, ["tab=nope"]),
        ({"tab": "versions", "left": "-1", "right": "4"}, {"tab": "versions", "right": "4"}, ["left=-1"]),
        ({"tab": "versions", "right": "99999999999999999999999999"}, {"tab": "versions"}, ["right=9999"]),
        ({"tab": "versions", "left": "²"}, {"tab": "versions"}, ["left=²"]),
        ({"tab": "interactions", "version": "abc"}, {"tab": "interactions"}, ["version=abc"]),
        ({"tab": "interactions", "version": "-3", "status": "happy"}, {"tab": "interactions"}, ["version=-3", "generating, completed"]),
        ({"tab": "interactions", "receipt": "happy", "reason": "x"}, {"tab": "interactions"}, ["superseded", "metric_not_weighted"]),
        ({"tab": "interactions", "text": "z" * 201}, {"tab": "interactions"}, ["longer than 200"]),
        ({"tab": "interactions", "usr": "ada"}, {"tab": "interactions"}, ["text, user, version"]),
        ({"tab": "overview", "left": "3"}, {"tab": "overview"}, ["takes nothing"]),
        ({"tab": "interactions", "user": ""}, {"tab": "interactions"}, []),
    ],
)
def test_what_is_ignored_is_named_with_the_reason(query, place, says):
    found, ignored = understood(query)
    assert found == place
    assert len(ignored) == len(says)
    for notice, part in zip(ignored, says, strict=True):
        assert part in notice
        assert "in the address was ignored" in notice


@pytest.mark.parametrize("tab", TITLES)
def test_no_tab_ignores_an_unknown_parameter_in_silence(tab):
    for name in ("foo", "limit", *(name for known in KNOWN.values() for name in known)):
        place, ignored = understood({"tab": tab, name: "<b>"})
        assert (name in place) != bool(ignored)
        assert "<b>" not in notices(ignored)
