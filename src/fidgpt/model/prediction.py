"""Multi-token prediction: an auxiliary loss on tokens after the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from fidgpt.model.blocks import BlockFactory, BlockSharing
from fidgpt.model.context import AttentionContext, Stream, Tokens
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear
from fidgpt.model.norm import NormFactory, RMSNorm
from fidgpt.model.reports import report_loss, report_metric
from fidgpt.model.transformer import Transformer
from fidgpt.ranges import require_not_negative

__all__ = ["MultiTokenTransformer", "PredictionFactory", "TokenLoss", "TokenPrediction"]


_FURTHEST = 1000  # maximum number of tokens ahead, each with its own block


@runtime_checkable
class TokenLoss(Protocol):
    """Returns the mean loss of tokens, as `fidgpt.train.CrossEntropy` does."""

    def __call__(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int[Tensor, " tokens"],
        counted: Bool[Tensor, " tokens"] | None,
        /,
    ) -> Float[Tensor, ""]:
        """Return the mean loss over the tokens where `counted` is true; None for all."""
        ...


@runtime_checkable
class PredictionFactory(Protocol):
    """Creates prediction modules, which are called like `TokenPrediction`."""

    def __call__(self, *, hidden_dim: int, block: BlockFactory) -> nn.Module: ...


class TokenPrediction(nn.Module):
    """Predicts one token further ahead, from features and the embedding of the next token.

    `norm(block(project([hidden_norm(features), token_norm(embedded)])))` (DeepSeek-V3, 2024,
    arXiv:2412.19437, section 2.2, equations 21 and 22; the norm after the block comes from the
    published weights).

    Args:
      hidden_dim: width of the residual stream.
      block: makes the block.
      norm: makes the three norms.
      init: of the projection.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        block: BlockFactory,
        norm: NormFactory = RMSNorm,
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        self.hidden_norm = norm(hidden_dim=hidden_dim)
        self.token_norm = norm(hidden_dim=hidden_dim)
        self.project = Linear(2 * hidden_dim, hidden_dim, init=init)
        self.block = block()
        self.norm = norm(hidden_dim=hidden_dim)

    def forward(self, features: Stream, embedded: Stream, ctx: AttentionContext) -> Stream:
        """Return features that predict one token further ahead.

        Args:
          features: features of each token, from the model or the previous prediction.
          embedded: embedding of the token that those features predict.
          ctx: context of the tokens of the features.
        """
        both = torch.cat([self.hidden_norm(features), self.token_norm(embedded)], dim=-1)
        return self.norm(self.block(self.project(both), ctx))


class MultiTokenTransformer(Transformer):
    """A Transformer that is also trained to predict tokens beyond the next one.

    Prediction k takes the features of prediction k - 1 and the embedding of the k-th token ahead,
    has a block like the last layer's, and predicts the token after that through the model's own
    unembedding (DeepSeek-V3, 2024, arXiv:2412.19437, section 2.2). In training it reports (see
    `fidgpt.model.reports`) the loss `mtp`, which is added to the model's own, and the metrics
    `mtp/1` and so on, in nats per token. Evaluation and generation skip these predictions.

    Args:
      hidden_dim: width of the residual stream.
      num_layers: depth.
      embedding: tokens to vectors.
      blocks: factories of blocks, each called once per layer.
      norm: normalizes the stream after the last block.
      unembedding: features to logits.
      loss: computes the loss from features, unembedding and targets.
      first_blocks: factories of the first layers, before the pattern starts.
      prediction: creates the module that predicts one more token.
      num_predictions: number of tokens to predict beyond the next one.
      weight: weight of the mean of their losses; 0.3 at first and 0.1 later in DeepSeek-V3.
      layout: makes the context of a batch.
      dropout: probability of dropping an element of the embedding in training.
      skips: connections from earlier points of the stream, such as `InputScalars`, in order.
      sharing: changes each factory of blocks, as `Shared` does.
      float8: multiplies in 8 bits, as `Float8` does.
      recompute: recomputes activations in the backward pass, as `Recompute` does.
      compile: compiles blocks, as `Compile` does.

    Raises:
      ValueError: num_predictions is out of range, there is no block, or the embedding width is not
        hidden_dim.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_layers: int,
        blocks: Sequence[BlockFactory],
        loss: TokenLoss,
        first_blocks: Sequence[BlockFactory] = (),
        prediction: PredictionFactory = TokenPrediction,
        num_predictions: int = 1,
        weight: float = 0.3,
        sharing: BlockSharing | None = None,
        **arguments: Any,
    ) -> None:
        if not 1 <= num_predictions <= _FURTHEST:
            raise ValueError(f"{num_predictions=} must be from 1 to {_FURTHEST}.")
        require_not_negative(weight=weight)
        if sharing is not None:  # with the predictions too
            sharing = cache(sharing)
            first_blocks, blocks = [*map(sharing, first_blocks)], [*map(sharing, blocks)]
        sizes = {"hidden_dim": hidden_dim, "num_layers": num_layers}
        super().__init__(**sizes, blocks=blocks, first_blocks=first_blocks, **arguments)
        first = num_layers <= len(first_blocks)
        last = first_blocks[num_layers - 1] if first else blocks[(num_layers - 1) % len(blocks)]
        self.predictions = nn.ModuleList(
            prediction(hidden_dim=hidden_dim, block=partial(self._layer, num_layers + i, last))
            for i in range(num_predictions)
        )
        self.loss = loss
        self.weight = weight

    def leave(self, x: Stream, tokens: Tokens, ctx: AttentionContext) -> Stream:
        """Return the features of the last layer; in training, report the predictions' losses."""
        features = super().leave(x, tokens, ctx)
        if self.training and ctx.cache is None:
            self._predict_ahead(features, tokens, ctx)
        return features

    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Return the children of both ends; the predictions embed tokens too."""
        first, last = super().ends()
        return first, [*last, *first]

    def count_batch(self, tokens: Tokens, ctx: AttentionContext | None = None) -> None:
        """Report the numbers of targets of the predictions, and what losses of modules count."""
        ctx = self.layout(tokens) if ctx is None else ctx
        if self.counts_computed:
            super().count_batch(tokens, ctx)
            return
        for ahead, count in enumerate(self._num_columns(ctx.num_columns), start=1):
            counted = self._counted(len(tokens), ctx, count, ahead)
            self._report_loss(torch.zeros(()), self._number(counted, tokens, ctx, count), ahead)

    def computed_columns(self, seq_len: int) -> Mapping[int, int]:
        """Return the numbers of columns of the layers, and of each prediction."""
        counts = self._num_columns(seq_len)
        return {seq_len: 0} | {count: ahead for ahead, count in enumerate(counts, start=1)}

    def _num_columns(self, seq_len: int) -> Sequence[int]:
        """Return of how many tokens of a row each prediction has the target."""
        num_predictions = min(len(self.predictions), seq_len - 2)
        return [seq_len - ahead - 1 for ahead in range(1, num_predictions + 1)]

    def _predict_ahead(self, features: Stream, tokens: Tokens, ctx: AttentionContext) -> None:
        ctx = ctx if ctx.tokens is not None else replace(ctx, tokens=tokens)
        counts = self._num_columns(ctx.num_columns)
        for ahead, (count, prediction) in enumerate(zip(counts, self.predictions, strict=False), 1):
            here, seen = ctx.columns(0, count, also=ahead), ctx.columns(0, count, ahead=ahead)
            assert seen.tokens is not None
            embedded = self.embedding(seen.tokens, seen)
            features = prediction(features[:, : len(here)], embedded, here)
            self._report(features, ctx, count, ahead)

    def _report(self, features: Tensor, ctx: AttentionContext, count: int, ahead: int) -> None:
        """Report the loss of one prediction, over the tokens that have a target."""
        tokens = ctx.columns(0, count, ahead=ahead + 1).tokens
        assert tokens is not None
        counted = self._counted(len(tokens), ctx, count, ahead)
        loss = self.loss(features.flatten(0, 1), self.unembedding, tokens.flatten(), counted)
        self._report_loss(loss, self._number(counted, tokens, ctx, count), ahead)

    def _counted(
        self, rows: int, ctx: AttentionContext, count: int, ahead: int
    ) -> Bool[Tensor, " tokens"] | None:
        """Return which tokens have a target that counts in the loss; None for all.

        These are tokens whose following ones, up to the one that a prediction reads, are of the
        same document. The predicted token may be in the next document, as for the model's own loss.
        """
        target_counts = ctx.columns(0, count, ahead=ahead).counted
        if ctx.contiguous:
            return None if target_counts is None else target_counts.flatten()
        first, last, target = (
            ctx.columns(0, count, ahead=distance).positions for distance in (0, ahead, ahead + 1)
        )
        has_target = (last == first + ahead) & (first >= 0) & (target >= 0)
        if target_counts is not None:
            has_target = has_target & target_counts
        return has_target.expand(rows, -1).flatten()

    def _number(
        self, counted: Tensor | None, tokens: Tensor, ctx: AttentionContext, count: int
    ) -> Int64[Tensor, ""]:
        """Return the number of targets that count, on the device.

        A tensor even if all do: in other micro-batches, of other processes, fewer may.
        """
        if counted is not None:
            return counted.sum()
        number = len(tokens) * len(ctx.columns(0, count))
        return torch.full((), number, device=tokens.device)

    def _report_loss(self, loss: Tensor, count: Tensor, ahead: int) -> None:
        report_metric(f"mtp/{ahead}", loss, count=count)
        report_loss("mtp", loss * (self.weight / len(self.predictions)), count=count)
