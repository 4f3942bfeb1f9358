"""What every engine asks of a request before it may reach the batch, where a fault would hit the others too, and what a seed means. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PretrainedConfig

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, ContextLengthError, InvalidRequestError
from online_sao.inference.engine import EngineRequest

MAX_TOP_LOGPROBS = 20
"""What OpenAI's contract allows. Finding them costs a partial sort of the vocabulary for each token of a request that asks."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``vocabulary``: token ids are below it. ``max_context_tokens``: prompt plus completion. ``min_temperature``: lowest above 0 that is sampled
    exactly as asked."""

    vocabulary: int
    max_context_tokens: int
    min_temperature: float

    @classmethod
    def of(cls, config: PretrainedConfig, settings: EngineSettings, min_temperature: float) -> RequestLimits:
        """Those of a model by its ``config``. Raises ConfigurationError if it cannot hold engine.max_context_tokens."""
        if settings.max_context_tokens > config.max_position_embeddings:
            raise ConfigurationError(
                f"engine.max_context_tokens is {settings.max_context_tokens}, but the model holds {config.max_position_embeddings} tokens at most."
            )
        return cls(config.vocab_size, settings.max_context_tokens, min_temperature)

    def check(self, request: EngineRequest) -> int:
        """The number of tokens that may be sampled. Raises ContextLengthError or InvalidRequestError for what cannot be sampled from."""
        room = self.max_context_tokens - len(request.prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"The prompt has {len(request.prompt_ids)} tokens; with one token of answer the context holds {self.max_context_tokens}.",
                param="messages",
            )
        if not self._are_tokens(request.prompt_ids):
            raise InvalidRequestError(f"prompt_ids must be a non-empty sequence of ids from 0 to {self.vocabulary - 1}.", param="messages")
        if request.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens is {request.max_tokens}; it must be at least 1.", param="max_tokens")
        if request.temperature != 0 and not self.min_temperature <= request.temperature < math.inf:
            raise InvalidRequestError(
                f"temperature is {request.temperature}; it must be 0 (greedy) or at least {self.min_temperature}.", param="temperature"
            )
        if not 0 < request.top_p <= 1:
            raise InvalidRequestError(f"top_p is {request.top_p}; it must be above 0 and at most 1.", param="top_p")
        if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequestError(f"top_logprobs is {request.top_logprobs}; it must be from 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs")
        return min(request.max_tokens, room)

    def check_text(self, token_ids: Sequence[int]) -> None:
        """As ``check``, for a text to be scored."""
        if len(token_ids) > self.max_context_tokens:
            raise ContextLengthError(f"The text has {len(token_ids)} tokens; the context holds {self.max_context_tokens}.")
        if token_ids and not self._are_tokens(token_ids):
            raise InvalidRequestError(f"token_ids must be from 0 to {self.vocabulary - 1}.")

    def _are_tokens(self, token_ids: Sequence[int]) -> bool:
        return bool(token_ids) and min(token_ids) >= 0 and max(token_ids) < self.vocabulary


def seed_key(request: EngineRequest) -> str | None:
    """What the random numbers of a seeded request are drawn from; None: it has no seed, or is greedy. The prompt takes part: a client that always
    sends one seed must not draw the same numbers for every question."""
    if request.seed is None or request.temperature == 0:
        return None
    prompt = hashlib.sha256(repr(request.prompt_ids).encode()).hexdigest()
    return f"{request.seed}:{prompt}"
