"""The decoder-only Transformer."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fidgpt.model.blocks import BlockFactory, BlockSharing, BlockWrapper, Norm, OutputLayer
from fidgpt.model.context import (
    AttentionContext,
    ContextFactory,
    Division,
    Stream,
    Tokens,
    one_document,
)
from fidgpt.model.embedding import Embedding
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.skips import Skip
from fidgpt.ranges import require_probability, require_size

__all__ = ["LanguageModel", "Transformer"]


Logits = Float[Tensor, "batch seq vocab"]
PartOfStream = Float[Tensor, "batch _ hidden"]  # between layers, each process may have some tokens


class LanguageModel(ExtensibleModule):
    """A model from tokens to logits, in two parts: `features` and `unembedding`.

    A loss can then compute logits for a few tokens at a time, and generation for the last token
    only: the logits of a whole batch are the largest tensor in training a small model.

    Attributes:
      unembedding: maps features [..., hidden] to logits [..., vocab].
      layout: makes the context of a batch.
      division: splits the tokens of a batch over processes; None if each computes whole rows.
      stream_dtype: of the stream that processes send each other between layers; None if they do
        not.
    """

    unembedding: nn.Module
    layout: ContextFactory = staticmethod(one_document)
    division: Division | None = None
    stream_dtype: torch.dtype | None = None

    def context_of(
        self,
        tokens: Tokens,
        *,
        counted: Bool[Tensor, "batch seq"] | None = None,
        real: Bool[Tensor, "batch seq"] | None = None,
    ) -> AttentionContext:
        """Return the context of the tokens that this process computes.

        Args:
          tokens: of whole rows.
          counted: as in `AttentionContext`.
          real: as in `AttentionContext`.
        """
        ctx = self.layout(tokens)
        if counted is not None or real is not None:
            ctx = replace(ctx, counted=counted, real=real)
        return ctx if self.division is None else self.division(ctx, tokens)

    def features(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the features of each token [batch, seq, hidden], the input of the unembedding.

        Args:
          tokens: ids, from 0 to vocab_size - 1.
          ctx: positions, documents and cache; defaults to `layout(tokens)`.
        """
        raise NotImplementedError

    def forward(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Logits:
        """Return next-token logits; takes the arguments of `features`."""
        return self.unembedding(self.features(tokens, ctx))

    def count_batch(self, tokens: Tokens, ctx: AttentionContext | None = None) -> None:
        """Report the counts that losses need of all micro-batches of a step.

        Nothing is computed unless a module has such a loss, such as `LoadBalancingLoss`.
        """
        if self.counts_computed:
            self.features(tokens, ctx)

    def computed_columns(self, seq_len: int) -> Mapping[int, int]:
        """Return the numbers of columns that modules compute, and how far ahead each one reads."""
        return {seq_len: 0}

    @property
    def counts_computed(self) -> bool:
        """Whether modules must compute to know these counts, as for the load of experts."""
        return any(getattr(module, "counts_batch", False) for module in self.modules())

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class Transformer(LanguageModel):
    """A decoder-only language model.

    `blocks` is a pattern that repeats over the depth: after `first_blocks`, layer i is built by
    `blocks[i % len(blocks)]`. With one entry all layers are alike; with `[dense, moe]` every second
    layer is a mixture of experts.

    Each block is wrapped by `float8` first, then by `recompute`, then by `compile`.

    Args:
      hidden_dim: width of the residual stream.
      num_layers: number of layers, including `first_blocks`.
      embedding: maps tokens to vectors.
      blocks: factories of blocks, each called once per layer.
      norm: normalizes the stream after the last block.
      unembedding: maps features to logits.
      first_blocks: factories of the first layers, in place of the pattern.
      layout: makes the context of a batch: `one_document` or `PackedDocuments`.
      dropout: probability of dropping an element of the embedding in training.
      skips: connections from earlier points of the stream, such as `InputScalars`, in order.
      sharing: changes each factory of blocks, as `Shared` does; None shares nothing among layers.
      float8: multiplies in 8 bits, as `Float8` does.
      recompute: recomputes activations in the backward pass, as `Recompute` does.
      compile: compiles blocks, as `Compile` does.

    Raises:
      ValueError: a size is out of range, there is no block, or the embedding width is not
        hidden_dim.
    """

    MOST_LAYERS: ClassVar[int] = 1024  # each is built, so that a typo could take all memory
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {
        "float8": "restart",
        "recompute": "live",
        "compile": "restart",  # compiled code rounds differently
    }
    REPEATS: ClassVar[Mapping[str, str]] = {"blocks": "num_layers"}

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_layers: int,
        embedding: Embedding,
        blocks: Sequence[BlockFactory],
        norm: Norm,
        unembedding: OutputLayer,
        first_blocks: Sequence[BlockFactory] = (),
        layout: ContextFactory = one_document,
        dropout: float = 0.0,
        skips: Sequence[Skip] = (),
        sharing: BlockSharing | None = None,
        float8: BlockWrapper | None = None,
        recompute: BlockWrapper | None = None,
        compile: BlockWrapper | None = None,
    ) -> None:
        super().__init__()
        require_size(hidden_dim=hidden_dim, num_layers=num_layers)
        require_probability(dropout=dropout)
        if num_layers > self.MOST_LAYERS:
            raise ValueError(f"{num_layers=} must be at most {self.MOST_LAYERS}.")
        if not blocks:
            raise ValueError(f"{blocks=} is empty; it needs at least one block factory.")
        if embedding.weight.shape[1] != hidden_dim:
            width = embedding.weight.shape[1]
            raise ValueError(f"{hidden_dim=} must equal the embedding's {width=}; share one value.")
        self.dropout = dropout
        self.embedding = embedding
        if sharing is not None:
            sharing = functools.cache(sharing)  # a factory in several places stays one
            first_blocks, blocks = [*map(sharing, first_blocks)], [*map(sharing, blocks)]
        pattern = (blocks[i % len(blocks)] for i in range(len(first_blocks), num_layers))
        factories = [*first_blocks[:num_layers], *pattern]
        self._wrappers = [w for w in (float8, recompute, compile) if w is not None]
        self.blocks = nn.ModuleList(self._layer(i, make) for i, make in enumerate(factories))
        for index, block in enumerate(self.blocks):
            for module in block.modules():
                if hasattr(module, "layer_place"):
                    cast(Any, module).layer_place = (index, num_layers)
        self.skips = nn.ModuleList(cast(Sequence[nn.Module], skips))
        self.norm = norm
        self.unembedding = cast(nn.Module, unembedding)
        self.layout = layout

    def _layer(self, index: int, make: BlockFactory) -> nn.Module:
        """Return a new block, changed by the wrappers."""
        block = cast(nn.Module, make())
        for wrapper in self._wrappers:
            block = wrapper(block, layer=index)
        return block

    def features(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the normalized output of the last layer, the input of the unembedding.

        A subclass changes `enter`, `layers` or `leave`; a stage of a pipeline calls some of these.
        """
        ctx = self.layout(tokens) if ctx is None else ctx
        x = self.layers(self.enter(tokens, ctx), ctx, 0, len(self.blocks))
        return self.leave(x, tokens, ctx)

    def enter(self, tokens: Tokens, ctx: AttentionContext) -> Stream:
        """Return the input of the first layer."""
        x = self.embedding(tokens, ctx)
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        return x

    def layers(self, x: PartOfStream, ctx: AttentionContext, begin: int, end: int) -> PartOfStream:
        """Return the output of the layers from `begin` to before `end`: with skips, of all."""
        skips, depth = cast(Sequence[Skip], self.skips), len(self.blocks)
        kept: dict[int, Stream] = {}
        wanted = {point for skip in skips for point in skip.reads(depth)}
        for index, block in enumerate(self.blocks):
            if index in wanted:
                kept[index] = x
            if begin <= index < end:
                for skip in skips:
                    x = skip.before(x, index, kept)
                x = block(x, ctx.at_layer(index))
        if depth in wanted:
            kept[depth] = x
        for skip in skips:
            x = skip.leave(x, depth, kept)
        return x

    def leave(self, x: Stream, tokens: Tokens, ctx: AttentionContext) -> Stream:
        """Return the features from the output of the last layer."""
        return self.norm(x)

    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Return the children that `enter` needs, and the ones that `leave` and the loss need."""
        others = [child for child in self.children() if child not in (self.embedding, self.blocks)]
        return [self.embedding], others
