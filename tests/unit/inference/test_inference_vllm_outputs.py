"""Which version each token is of, and its logprob, from records shaped as vLLM's. Needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from online_sao.errors import EngineError
from online_sao.inference.engine import TokenDelta
from online_sao.inference.vllm.outputs import Spans, to_deltas


def flat(*positions):
    """FlatLogprobs of positions, each [(token, logprob, rank), …], the sampled token first."""
    starts, ends, entries = [], [], []
    for position in positions:
        starts.append(len(entries))
        entries += position
        ends.append(len(entries))
    tokens, logprobs, ranks = ([entry[place] for entry in entries] for place in range(3))
    return SimpleNamespace(start_indices=starts, end_indices=ends, token_ids=tokens, logprobs=logprobs, ranks=ranks)


def output(tokens, *, finished=None, versions=None, logprobs=None):
    return SimpleNamespace(
        finished=finished is not None,
        outputs=[
            SimpleNamespace(
                token_ids=tokens,
                logprobs=logprobs or flat(*([(token, -token / 10, 1)] for token in tokens)),
                finish_reason=finished,
                weight_versions=None if versions is None else [SimpleNamespace(version=v, start=s, end=e) for v, s, e in versions],
            )
        ],
    )


def deltas(answer, spans, top=0):
    return list(to_deltas(answer, spans, top))


def test_tokens_of_one_version_are_one_delta():
    state = SimpleNamespace(weight_version_starts=[("4", 0)])
    assert deltas(output([7, 8]), Spans(state)) == [TokenDelta((7, 8), (-0.7, -0.8), 4)]


def test_the_change_is_found_though_outputs_were_merged_over_it():
    """Two tokens were there; the next output holds one more of version 4 and two of version 5; then the last."""
    state = SimpleNamespace(weight_version_starts=[("4", 0)])
    spans = Spans(state)
    deltas(output([1, 2]), spans)
    state.weight_version_starts.append(("5", 3))
    assert [(d.token_ids, d.policy_version) for d in deltas(output([3, 4, 5]), spans)] == [((3,), 4), ((4, 5), 5)]
    last = deltas(output([6], finished="stop", versions=[("4", 0, 3), ("5", 3, 6)]), spans)
    assert [(d.token_ids, d.policy_version, d.finish_reason) for d in last] == [((6,), 5, "stop")]


def test_an_output_that_was_taken_late_does_not_take_the_versions_of_tokens_to_come():
    """vLLM may have noted changes beyond the tokens in hand by the time they are looked at."""
    state = SimpleNamespace(weight_version_starts=[("4", 0), ("5", 3), ("6", 5)])
    spans = Spans(state)
    assert [(d.token_ids, d.policy_version) for d in deltas(output([1, 2]), spans)] == [((1, 2), 4)]
    assert [(d.token_ids, d.policy_version) for d in deltas(output([3, 4]), spans)] == [((3,), 4), ((4,), 5)]


def test_a_request_that_ended_at_once_is_told_by_its_last_output():
    (delta,) = deltas(output([1, 2], finished="length", versions=[("9", 0, 2)]), Spans(None))
    assert (delta.policy_version, delta.finish_reason) == (9, "length")


def test_only_the_last_of_several_deltas_ends_the_request():
    found = deltas(output([1, 2], finished="stop", versions=[("1", 0, 1), ("2", 1, 2)]), Spans(None))
    assert [delta.finish_reason for delta in found] == [None, "stop"]


def test_the_likeliest_are_by_rank_without_what_top_p_removed():
    """The sampled token is rank 3 of 3 asked for, and comes twice; another was removed."""
    position = [(30, -2.0, 3), (10, -0.5, 1), (20, -1.5, 2), (30, -2.0, 3)]
    removed = [(10, -0.5, 1), (10, -0.5, 1), (20, float("-inf"), 2)]
    state = SimpleNamespace(weight_version_starts=[("0", 0)])
    (delta,) = deltas(output([30, 10], logprobs=flat(position, removed)), Spans(state), top=3)
    assert delta.top_logprobs == (((10, -0.5), (20, -1.5), (30, -2.0)), ((10, -0.5),))
    assert delta.behavior_logprobs == (-2.0, -0.5)


def test_a_sampled_token_beyond_the_likeliest_is_no_alternative():
    state = SimpleNamespace(weight_version_starts=[("0", 0)])
    (delta,) = deltas(output([30], logprobs=flat([(30, -6.0, 17), (10, -0.5, 1)])), Spans(state), top=1)
    assert delta.top_logprobs == (((10, -0.5),),)


@pytest.mark.parametrize(
    ("answer", "state", "match"),
    [
        (output([1], logprobs=flat([(1, float("nan"), 1)])), [("0", 0)], "no finite"),
        (output([1], logprobs=flat([(2, -1.0, 1)])), [("0", 0)], "not of the tokens"),
        (output([1]), [], "which weights"),
        (output([1], finished="abort", versions=[("0", 0, 1)]), [("0", 0)], "abort"),
    ],
)
def test_what_cannot_be_trusted_fails_the_request(answer, state, match):
    with pytest.raises(EngineError, match=match):
        deltas(answer, Spans(SimpleNamespace(weight_version_starts=state)))
