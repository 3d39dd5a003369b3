"""Attention."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt.data import begin_of_text, end_of_text
from fidgpt.fiddlers.patterns import repeated
from fidgpt.fiddlers.texts import own_corpus
from fidgpt.graph import ConfigError, find
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.model import (
    ALiBi,
    Attention,
    LatentAttention,
    LayerNormPerHead,
    RMSNorm,
    Softcap,
    Transformer,
    Unembedding,
    ValueEmbedding,
    attention_sinks,
    heads_that_fit,
    packed_documents,
)
from fidgpt.tags import HeadDim, HiddenDim, LogitCap, NumKVHeads, ScoreCap, VocabSize, Window
from fidgpt.train import Trainer

__all__ = [
    "use_document_mask",
    "use_gqa",
    "use_norm_per_head",
    "use_qk_norm",
    "use_sinks",
    "use_sliding_window",
    "use_softcap",
    "use_value_embeddings",
]

ATTENTIONS = (Attention, LatentAttention)


def use_gqa(cfg: fdl.Config[Trainer], num_kv_heads: int = 2) -> None:
    """Use grouped-query attention with `num_kv_heads` key and value heads per layer."""
    for attention in find(cfg.model, Attention):
        attention.num_kv_heads = NumKVHeads.new(num_kv_heads)


def use_qk_norm(cfg: fdl.Config[Trainer], eps: float = 1e-6) -> None:
    """Normalize queries and keys per head (arXiv:2302.05442)."""
    for attention in find(cfg.model, Attention):
        attention.query_norm = fdl.ArgFactory(RMSNorm, hidden_dim=HeadDim.new(), eps=eps)
        attention.key_norm = fdl.ArgFactory(RMSNorm, hidden_dim=HeadDim.new(), eps=eps)


def use_norm_per_head(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Normalize queries and keys by a LayerNorm for each head (Command R+, StableLM 2 12B)."""
    for attention in find(cfg.model, Attention):
        heads = [attention.num_heads or _all_heads() for _ in range(2)]
        if attention.num_kv_heads is None:
            attention.num_kv_heads = NumKVHeads.new(heads.pop())
        for name, number in (("query_norm", heads.pop()), ("key_norm", NumKVHeads.new())):
            sizes = {"num_heads": number, "head_dim": HeadDim.new()}
            setattr(attention, name, fdl.ArgFactory(LayerNormPerHead, **sizes, eps=eps))


def _all_heads() -> fdl.Config[int]:
    """Return the number of heads that fill the width."""
    return fdl.Config(heads_that_fit, hidden_dim=HiddenDim.new(), head_dim=HeadDim.new())


def use_softcap(
    cfg: fdl.Config[Trainer], cap: float = 50.0, logit_cap: float | None = 30.0
) -> None:
    """Cap scores at `cap` and logits at `logit_cap` by tanh (Gemma 2); None for no logit cap."""
    capped = fdl.Config(Softcap, cap=ScoreCap.new(cap))
    for attention in find(cfg.model, *ATTENTIONS):
        attention.scores = [capped, *_without(attention.scores, Softcap)]
    for unembedding in find(cfg.model, Unembedding):
        unembedding.softcap = None if logit_cap is None else LogitCap.new(logit_cap)


def use_sinks(cfg: fdl.Config[Trainer]) -> None:
    """Add a learned attention sink per head (gpt-oss)."""
    for attention in find(cfg.model, *ATTENTIONS):
        attention.sinks = fdl.Partial(attention_sinks)


def use_value_embeddings(cfg: fdl.Config[Trainer]) -> None:
    """Add a token embedding to the values of each attention."""
    for attention in find(cfg.model, Attention):
        num_heads = attention.num_kv_heads or attention.num_heads or _all_heads()
        attention.num_kv_heads = NumKVHeads.new(num_heads)
        attention.value_embedding = fdl.ArgFactory(
            ValueEmbedding,
            vocab_size=VocabSize.new(),
            num_kv_heads=NumKVHeads.new(),
            head_dim=HeadDim.new(),
            init=cfg.model.embedding.weight.init,
        )


def use_sliding_window(cfg: fdl.Config[Trainer], window: int = 1024, every: int = 2) -> None:
    """Use sliding-window attention, with full attention in each `every`-th layer.

    Gemma 3 has five layers with a window per layer without: `every=6`. With 0, all layers have it.
    """
    if every < 0:
        raise ConfigError(f"{every=} must be 1 or more, or 0 for a window in all layers.")
    for model in find(cfg, Transformer):
        model.blocks = repeated(model.blocks, max(every, 1), num_layers=model.num_layers)
        numbered = [*enumerate(model.first_blocks), *enumerate(model.blocks)]
        for index, block in numbered:
            sees_all = every > 0 and (index + 1) % every == 0
            for attention in find(block, *ATTENTIONS):
                attention.window = None if sees_all else Window.new(window)


def use_document_mask(cfg: fdl.Config[Trainer]) -> None:
    """Mask attention across documents, with positions that start at 0 in each."""
    tokenizer = own_corpus(cfg).tokenizer
    cfg.model.layout = fdl.Config(
        packed_documents,
        end_of_text=fdl.Config(end_of_text, tokenizer=tokenizer),
        begin_of_text=fdl.Config(begin_of_text, tokenizer=tokenizer),
    )


def forget_alibi(attention: Any) -> None:
    """Remove ALiBi from an attention node."""
    kept = _without(attention.scores, ALiBi)
    if len(kept) < len(attention.scores):
        attention.scores = kept
    if "scores" in raw_arguments(attention) and not kept:
        del attention.scores  # the default, as in a config that never had one


def _without(scores: Sequence[Any], kind: type) -> list[Any]:
    """Return the score changes of other kinds."""
    return [change for change in scores if fdl.get_callable(change) is not kind]
