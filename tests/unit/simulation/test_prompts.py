"""Prompts: enough, apart, and the same for the same seed."""

from online_sao.simulation.prompts import HELD_OUT, TRAINING, training_prompt


def test_enough_different_prompts_and_held_out_ones_never_trained_on():
    assert len(set(TRAINING)) == len(TRAINING) >= 60
    assert len(set(HELD_OUT)) == len(HELD_OUT) >= 16
    assert not set(TRAINING) & set(HELD_OUT)


def test_order_depends_on_seed_alone_and_asks_every_prompt_once_a_round():
    rounds = [[training_prompt(seed, start + i) for i in range(len(TRAINING))] for seed, start in ((0, 0), (0, len(TRAINING)), (1, 0))]
    assert all(sorted(order) == sorted(TRAINING) for order in rounds)
    assert rounds[0] != rounds[1] != rounds[2] != rounds[0]
    assert rounds[0] == [training_prompt(0, i) for i in range(len(TRAINING))]
