"""How much generation keeps of the tokens so far."""

from dataclasses import replace

import torch

from fidgpt.model.cache import Cache
from fidgpt.model.cost.layers import sum_over_layers
from fidgpt.model.language_model import LanguageModel
from fidgpt.model.layout import one_document


@torch.no_grad()
def cache_bytes(model: LanguageModel, *, context: int) -> int:
    """Memory of the cache of one text with room for `context` tokens, as its parts ask for it.

    Args:
      model: on the meta device, in the number format that it generates in, used by nobody else.
      context: tokens of the prompt and of what is written, together.
    """
    tokens = torch.zeros(1, 1, dtype=torch.int64, device="meta")

    def asked_for() -> int:
        cache = Cache(capacity=context)
        model.features(tokens, replace(one_document(tokens), cache=cache))
        return cache.bytes()

    return sum_over_layers(model, asked_for)
