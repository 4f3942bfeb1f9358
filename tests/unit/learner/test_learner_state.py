"""State: saved and loaded to the bit, exported as a PEFT adapter, and never taken for that of another model."""

import pytest
import torch
from peft import PeftModel

from online_sao.errors import ConfigurationError
from online_sao.models.adapter import MergedWeights, adapted_matrices, read_adapter
from online_sao.models.fingerprint import fingerprint, matches


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("seconds")}


def test_a_loaded_learner_goes_on_exactly_where_the_saved_one_would(make_bench, tmp_path):
    one, other = make_bench(anchor_coefficient=0.1, value_warmup_updates=2), make_bench(anchor_coefficient=0.1, value_warmup_updates=2)
    one.learner.update(one.batch())
    one.learner.update(one.batch(first_id=10))
    one.learner.save(tmp_path)
    other.learner.load(tmp_path)
    batch = one.batch(first_id=20)

    first, second = one.learner.update(batch), other.learner.update(batch)

    for ours, theirs in ((one.policy(), other.policy()), (one.value(), other.value())):
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    assert without_times(first.metrics) == without_times(second.metrics)
    assert other.learner.updates == 3
    assert second.metrics["value/explained_variance_trajectories"] == 12


def test_a_snapshot_can_be_restored_more_than_once(bench):
    bench.learner.update(bench.batch())
    snapshot = bench.learner.snapshot()
    batch = bench.batch(first_id=10)
    results = []
    for _ in range(2):
        bench.learner.restore(snapshot)
        bench.learner.update(batch)
        results.append(bench.policy())
    for name in results[0]:
        assert torch.equal(results[0][name], results[1][name])


def test_reset_is_the_beginning(bench):
    policy, value = bench.policy(), bench.value()
    for _ in range(2):
        bench.learner.update(bench.batch())
        bench.learner.reset()
        assert bench.learner.updates == 0
        assert all(torch.equal(policy[name], tensor) for name, tensor in bench.policy().items())
        assert all(torch.equal(value[name], tensor) for name, tensor in bench.value().items())


def test_a_new_learning_rate_holds_after_loading_an_old_state(make_bench, tmp_path):
    old, new = make_bench(policy_learning_rate=1e-2), make_bench(policy_learning_rate=1e-4)
    old.learner.update(old.batch())
    old.learner.save(tmp_path)
    new.learner.load(tmp_path)
    before = new.policy()

    new.learner.update(new.batch())

    assert max(float((new.policy()[name] - before[name]).abs().max()) for name in before) < 1e-3


def test_so_does_a_new_moment(make_bench, tmp_path):
    old = make_bench(adam_beta1=0.9)
    old.learner.update(old.batch())
    old.learner.save(tmp_path)
    policies = []
    for beta1 in (0.9, 0.0):
        bench = make_bench(adam_beta1=beta1)
        bench.learner.load(tmp_path)
        bench.learner.update(bench.batch(rewards=(-1.0,) * 8))
        policies.append(bench.policy())
    assert any(not torch.allclose(policies[1][name], tensor) for name, tensor in policies[0].items())


def test_the_state_of_another_rank_or_base_is_refused(make_bench, tmp_path):
    saved = make_bench(lora_rank=4)
    saved.learner.save(tmp_path)

    with pytest.raises(ConfigurationError, match=r"rank 4 and alpha 8, the settings say rank 2.*lora_rank"):
        make_bench(lora_rank=2).learner.load(tmp_path)

    identity = tmp_path / "learner.json"
    identity.write_text(identity.read_text().replace("tiny", "another model"))
    with pytest.raises(ConfigurationError, match=r"another base model.*policy\.model"):
        saved.learner.load(tmp_path)


def test_the_exported_adapter_is_what_is_served(bench, tmp_path, base_model):
    bench.learner.update(bench.batch())
    bench.learner.update(bench.batch())
    bench.learner.export_adapter(tmp_path)
    prompt, tokens = (3, 4, 5), (6, 7, 8)
    expected = bench.learner.score(prompt, tokens, 0.7)

    def logprobs(model: torch.nn.Module) -> list[float]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, 2:5] / 0.7
        return torch.log_softmax(logits, dim=-1)[range(3), list(tokens)].tolist()

    merged = MergedWeights(base_model)
    assert bench.learner.score(prompt, tokens, 0.7) != pytest.approx(logprobs(base_model), abs=1e-3)
    merged.apply(read_adapter(tmp_path))
    assert matches(bench.learner.served_digest(), fingerprint(adapted_matrices(base_model)))
    assert logprobs(base_model) == pytest.approx(expected, abs=1e-4)
    merged.apply(None)
    assert not matches(bench.learner.served_digest(), fingerprint(adapted_matrices(base_model)))
    assert logprobs(PeftModel.from_pretrained(base_model, tmp_path).eval()) == pytest.approx(expected, abs=1e-4)


def test_standing_on_another_version_is_temporary(bench, tmp_path):
    base = bench.learner.score((3, 4), (5, 6), 1.0)
    bench.learner.update(bench.batch())
    bench.learner.export_adapter(tmp_path)
    first = bench.learner.score((3, 4), (5, 6), 1.0)
    bench.learner.update(bench.batch())
    weights, second = bench.policy(), bench.learner.score((3, 4), (5, 6), 1.0)
    assert first != second

    with bench.learner.standing_on(tmp_path):
        assert bench.learner.score((3, 4), (5, 6), 1.0) == first
    with bench.learner.standing_on(None):
        assert bench.learner.score((3, 4), (5, 6), 1.0) == pytest.approx(base, abs=1e-6)

    assert bench.learner.score((3, 4), (5, 6), 1.0) == second
    assert all(torch.equal(weights[name], tensor) for name, tensor in bench.policy().items())
