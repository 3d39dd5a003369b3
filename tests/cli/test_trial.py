"""Components that would fail in a run are named before it, with the remedy."""

from collections.abc import Callable
from contextlib import nullcontext

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, find
from fidgpt.model import Attention, AttentionContext, LanguageModel
from fidgpt.runs.building import build_trainer


class Elsewhere(nn.Module):
    """Makes a tensor on the CPU, wherever the model is."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x) * torch.arange(x.shape[1]).unsqueeze(-1)


class Narrow(Elsewhere):
    """Takes half of what comes in, and gives it to a matrix for all of it."""

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x[..., ::2])


def with_attention(kind: type[nn.Module]):
    cfg = compose(["config:debug"]).config
    for attention in find(cfg.model, Attention):
        del attention.head_dim
        cfg.model.blocks[0].attention = type(attention)(kind, hidden_dim=32)
    return cfg


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Elsewhere, r"blocks\.0\.attention \(Elsewhere\), test_trial\.py:\d+: .*\n.*=x\.device"),
        (Narrow, r"blocks\.0\.attention \(Narrow\), test_trial\.py:\d+: .*\n.*--debug"),
    ],
)
def test_the_part_and_the_line_are_named(kind: type[nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(with_attention(kind))


class Bigram(LanguageModel):
    """Embeds tokens, and returns what `make` makes of that."""

    def __init__(self, make: Callable[[Tensor], Tensor], *, num_logits: int = 257) -> None:
        super().__init__()
        self.table = nn.Embedding(num_logits, 8)
        self.unembedding = nn.Linear(8, num_logits)
        self.make = make

    def features(self, tokens: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        return self.make(self.table(tokens))

    def forward(self, tokens: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        return self.unembedding(self.features(tokens, ctx))  # whose shape no test checks


@pytest.mark.parametrize(
    ("make", "num_logits", "message"),
    [
        (lambda x: x, 100, r"\[1, 32, 100\] .*vocab_size=257 needs logits \[1, 32, 257\]: tokens"),
        (lambda x: x[:, -1:], 257, r"\[1, 1, 257\] for one sequence.*\[batch, seq, hidden\]"),
        (lambda x: x, 300, None),
    ],
)
def test_a_model_returns_logits_of_all_tokens_of_the_vocabulary(
    make: Callable[[Tensor], Tensor], num_logits: int, message: str | None
) -> None:
    cfg = compose(["config:debug"]).config
    cfg.model = fdl.Config(Bigram, make, num_logits=num_logits)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        build_trainer(cfg)


@pytest.mark.parametrize(
    "change",
    [
        "use:{}.mask=And(masks=(causal, Window(size=8)))",
        "use:{}.kernel=flex",
        "use:model.layout=PackedDocuments(end_of_text=256)",
        "set:{}.scores=[Softcap(cap=50), ALiBi()]",
    ],
)
def test_a_part_is_put_as_it_is_called(change: str) -> None:
    directive = change.format("model.blocks[0].attention")
    build_trainer(compose(["config:debug", directive]).config)
