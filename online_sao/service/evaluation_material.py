"""What every version is asked and shown: fixed prompts and a fixed text. Changing either makes later evaluations incomparable with earlier ones.

Plain, everyday, and about nothing that users are likely to score: the point is what a version can still do, not what it was taught.
"""

from __future__ import annotations

CHECK_PROMPTS = ("What did you do this morning?", "Name three things one finds in a kitchen.")
"""Sampled at every swap, at once: the learner compares their logprobs with its own (the self-check). They are part of an evaluation too."""

PROMPTS = (
    *CHECK_PROMPTS,
    "How do I make a cup of tea?",
    "Why is the sky blue?",
    "Tell me about a walk in the park.",
    "What is a good name for a dog, and why?",
    "Explain what a library is to a child.",
    "What should I cook for two friends tonight?",
)

TEXT = """The bakery at the corner opens at six. By then the ovens have been warm for hours, and the smell of bread has reached the far end of the
street. A woman in a blue coat is always the first to come. She buys two rolls and a newspaper, and she counts the coins into her hand before she
pays. After her come the people who work at the station, and the children who are late for school.

On Saturdays the market is held in the square. Farmers bring apples, potatoes, eggs and honey from the villages around the town. If the weather is
good, the tables stand close together and it takes a long time to walk from one side to the other. If it rains, most people buy what they need and
go home quickly. An old man sells clocks that he has repaired himself. He says that a clock is only broken when nobody wants to know the time.

Water boils at a lower temperature on a mountain than at the sea, because the air above it presses less. That is why beans take longer to become
soft in a high valley. My grandmother, who lived in such a valley, put them in water the evening before. In the morning she lit the stove, closed
the window, and told us that there was enough time for a walk before lunch."""
"""Its perplexity is measured. Written for this purpose, so that no model has seen it in training."""
