"""Components that would fail in a run are named before it, with the remedy."""

from collections.abc import Callable
from contextlib import nullcontext

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt.cli import app, train
from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, find
from fidgpt.model import Attention, AttentionContext, InitError, LanguageModel
from fidgpt.runs.building import build_trainer

from .conftest import Command


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


class Asking(Elsewhere):
    """Takes those positions only whose first number is above 0."""

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x[x[..., 0] > 0]).reshape(x.shape)


class Unstarted(nn.Module):
    """Fills a parameter in its constructor, and nowhere else."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(hidden_dim))

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return x * self.rate


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
        (Asking, r"blocks\.0\.attention \(Asking\), test_trial\.py:\d+: .*\n.*=x\.device"),
        (Narrow, r"blocks\.0\.attention \(Narrow\), test_trial\.py:\d+: .*\n.*--debug"),
    ],
)
def test_the_part_and_the_line_are_named(kind: type[nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(with_attention(kind))


def test_a_parameter_without_init_is_reported_before_the_run() -> None:
    with pytest.raises(
        InitError, match=r"blocks\.0\.attention \(Unstarted\) .* initial values of rate"
    ):
        build_trainer(with_attention(Unstarted))


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


@pytest.mark.parametrize(
    ("directive", "place", "message", "sources"),
    [
        ("use:optimizer=torch.optim.Adam(betas=(0.9, 1.5))", "optimizer",
         "Invalid beta .*1.5", ["optimizer.betas"]),
        ("set:optimizer.lr=inf", "optimizer", "lr=inf must be finite", ["optimizer.lr"]),
        ("use:optimizer=Muon", "optimizer", "no parameter group is orthogonal", None),
    ],
)  # fmt: skip
def test_what_an_optimizer_rejects_is_reported_before_a_run(
    directive: str, place: str, message: str, sources: list[str] | None
) -> None:
    cfg = compose(["config:debug", "fiddler:use_sgd", directive]).config
    with pytest.raises(ConfigError, match=f"^{place}: {message}") as caught:
        build_trainer(cfg)
    assert caught.value.place == place
    assert sources is None or list(caught.value.sources) == sources


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("fiddler:use_text(path=/nowhere.txt)", "/nowhere.txt does not exist"),
        ("use:data.corpus.tokenizer=TokenizerFile(path=/nowhere.json)", "/nowhere.json"),
    ],
)
def test_a_dry_run_looks_for_what_a_run_would_read(
    command: Command, directive: str, message: str
) -> None:
    flags = ("--config=config:debug", f"--config={directive}", "--dry_run")
    status, out, err = command(train.main, *flags)
    assert status == app.MISTAKE and message in err and "Traceback" not in err
    assert "writes to" not in out
