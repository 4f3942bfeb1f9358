"""Plain words for the metrics of an update (names of learner/report.py). Owns their order on the page; knows no values."""

from __future__ import annotations

from api.dashboard.words import MetricWords

GROUPS = (("data/", "What it learned from"), ("policy/", "What it did to the policy"), ("value/", "How well it predicted scores"))

_WORDS = {
    "data/trajectories": MetricWords("Scored answers", "Trajectories in the batch", "count"),
    "data/reward_mean": MetricWords("Mean reward", "Scores mapped to −1 … +1, averaged over the batch"),
    "data/policy_lag_mean": MetricWords("Mean lag", "Updates between writing an answer and learning from it", digits=1),
    "data/policy_lag_max": MetricWords("Largest lag", "Updates between writing the oldest answer and learning from it", "count"),
    "data/response_length_mean": MetricWords("Mean length", "Tokens of an answer that were sampled by the policy", digits=1),
    "data/truncation_rate": MetricWords("Cut at the limit", "Answers that ended at the token limit instead of by themselves", "percent"),
    "data/action_tokens": MetricWords("Tokens learned from", "Action tokens of the batch, masked ones included", "count"),
    "data/tokens": MetricWords("Tokens read", "All tokens of the batch, prompts included", "count"),
    "data/non_finite_rewards": MetricWords("Broken rewards", "Rewards that were not finite numbers; must be 0", "count"),
    "policy/masked_fraction": MetricWords(
        "Tokens masked", "Tokens left out because their probability had moved too far since sampling (DIS)", "percent"
    ),
    "policy/masked_fraction_low": MetricWords("… too unlikely now", "Masked tokens whose ratio was at or below 1 − ε low", "percent"),
    "policy/masked_fraction_high": MetricWords("… too likely now", "Masked tokens whose ratio was at or above 1 + ε high", "percent"),
    "policy/masked_fraction_good": MetricWords(
        "Good tokens lost", "Of the tokens that pleased, those left out as too unlikely now: while this grows, nothing brings them back", "percent"
    ),
    "policy/abs_log_ratio_unmasked": MetricWords(
        "Drift, kept tokens", "Mean |log ratio| between now and sampling, of tokens that were trained", digits=3
    ),
    "policy/abs_log_ratio_masked": MetricWords(
        "Drift, masked tokens", "Mean |log ratio| between now and sampling, of tokens that were masked", digits=3
    ),
    "policy/ess_fraction": MetricWords(
        "Effective sample", "Effective sample size over the number of tokens, before masking: 100 % is on-policy", "percent"
    ),
    "policy/kl_behavior_current_k1": MetricWords("Drift (k1)", "KL from the sampling policy to the current one, k1 estimate, nats a token", digits=4),
    "policy/kl_behavior_current_k3": MetricWords("Drift (k3)", "KL from the sampling policy to the current one, k3 estimate, nats a token", digits=4),
    "policy/kl_base": MetricWords("Distance from base", "KL(current ‖ base), nats a token: how far learning has carried the model", digits=3),
    "policy/learning_rate": MetricWords("Step", "Learning rate of this update; smaller while answers please", digits=5),
    "policy/anchor_coefficient": MetricWords("Anchor", "Strength of the pull towards the base model; it grows while scores fall", digits=2),
    "policy/entropy": MetricWords("Entropy", "How open the policy's choice of the next token is, nats", digits=2),
    "policy/advantage_abs_mean": MetricWords("Mean |advantage|", "Size of the push each token got", digits=3),
    "policy/grad_norm": MetricWords("Gradient norm", "Before clipping", digits=3),
    "policy/loss": MetricWords("Loss", "What the policy step minimised, anchor included", digits=4),
    "policy/step_applied": MetricWords("Steps applied", "1: the policy moved; 0: a value-only or refused update", "count"),
    "policy/non_finite_tokens": MetricWords("Broken tokens", "Tokens with non-finite numbers, masked; must be 0", "count"),
    "policy/seconds": MetricWords("Seconds", "Time in the policy's passes", digits=1),
    "value/explained_variance": MetricWords("Explained variance", "1: predicts every score; 0: no better than a constant; below 0: worse"),
    "value/explained_variance_trajectories": MetricWords("… measured over", "Trajectories in that figure", "count"),
    "value/calibration_slope": MetricWords(
        "Trust in the critic", "How much of its predictions the baseline uses: 0 is a plain recent mean, 1 the predictions in full"
    ),
    "value/loss": MetricWords("Prediction error", "Mean squared error of the predicted reward, before this batch was learned", digits=3),
    "value/mean": MetricWords("Mean prediction", "Predicted reward, averaged over tokens, before this batch was learned"),
    "value/grad_norm": MetricWords("Gradient norm", "Before clipping", digits=3),
    "value/updates": MetricWords("Updates", "Value steps taken on this batch", "count"),
    "value/seconds": MetricWords("Seconds", "Time in the value model's passes", digits=1),
}
_ORDER = {name: order for order, name in enumerate(_WORDS)}


def words_for(metric: str) -> tuple[MetricWords, int]:
    """Words and place of ``metric``; one nobody named yet keeps its own name and comes last."""
    if metric in _WORDS:
        return _WORDS[metric], _ORDER[metric]
    return MetricWords(metric.split("/", 1)[-1].replace("_", " "), "A metric of the update", digits=3), len(_ORDER)
