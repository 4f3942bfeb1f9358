"""What simulated users ask: short prompts about everyday things, in two parts that never mix. Knows nothing of who asks or what they like.

Training prompts are the ones whose answers are scored. Held-out prompts are never scored: they show whether what was learned carries over.
"""

from __future__ import annotations

import random

TRAINING = (
    "Tell me about your morning.",
    "What is a good breakfast?",
    "Describe a walk in the park.",
    "How do you make a cup of tea?",
    "What makes a good friend?",
    "Tell me something about rain.",
    "Why do people like gardens?",
    "Describe your favourite room in a house.",
    "What should one cook on a Sunday?",
    "How does a bicycle stay upright?",
    "Tell me about the sea.",
    "What is fun about winter?",
    "Say something about cats.",
    "How do I fall asleep faster?",
    "What do you think of long train rides?",
    "Describe a busy market.",
    "What is the best part of a weekend?",
    "Why do leaves change colour?",
    "Tell me about a good book.",
    "How do I keep my desk tidy?",
    "What can one do on a rainy afternoon?",
    "Describe the smell of fresh bread.",
    "What makes a city pleasant?",
    "Give me an idea for dinner.",
    "Tell me about learning to swim.",
    "What is nice about old clothes?",
    "How do birds know where to fly?",
    "Describe a quiet evening at home.",
    "What should I pack for a short trip?",
    "Why is music comforting?",
    "Tell me about a lake in summer.",
    "How do I start a conversation?",
    "What is a good gift for a neighbour?",
    "Describe a storm at night.",
    "What do you like about mornings?",
    "How can I save a little money?",
    "Tell me about growing tomatoes.",
    "What is the point of a hobby?",
    "Describe an old wooden bridge.",
    "How do I say sorry to a friend?",
    "What is good about living in a village?",
    "Tell me about a day at the beach.",
    "Why do dogs wag their tails?",
    "How do I paint a wall?",
    "What is your view on early dinners?",
    "Describe the first day of school.",
    "What can I learn in ten minutes?",
    "Tell me about snow.",
    "How do I choose a pair of shoes?",
    "What is a good way to relax?",
    "Describe a grandmother's kitchen.",
    "Why do we dream?",
    "Tell me about a small kindness.",
    "How do I look after a plant?",
    "What is special about candles?",
    "Describe a bus ride through town.",
    "What would make today better?",
    "How do I write a birthday card?",
    "Tell me about the moon.",
    "What is a good game for two people?",
)
HELD_OUT = (
    "Tell me about your evening.",
    "What is a good lunch?",
    "Describe a walk along a river.",
    "How do you make a sandwich?",
    "What makes a good neighbour?",
    "Tell me something about the wind.",
    "Why do people like mountains?",
    "Describe a small café.",
    "What is fun about autumn?",
    "Say something about horses.",
    "How do I wake up earlier?",
    "What do you think of long walks?",
    "Tell me about a good film.",
    "Give me an idea for a picnic.",
    "How do I make a room cosy?",
    "What is nice about old photographs?",
)


def training_prompt(seed: int, index: int) -> str:
    """The prompt of interaction ``index`` (from 0). Every run of len(TRAINING) interactions asks each prompt once, in an order of its own."""
    round_number, position = divmod(index, len(TRAINING))
    return random.Random(f"{seed}/{round_number}").sample(TRAINING, len(TRAINING))[position]
