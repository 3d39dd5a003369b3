"""Causal self-attention with grouped queries, and the kernel that it calls."""

from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.kernels import Kernel, causal_attention
from fidgpt.model.linear import Linear


class Attention(nn.Module):
    """Multi-head attention over the tokens so far (Vaswani et al., 2017).

    With fewer key and value heads than query heads, neighbouring queries share one (grouped-query
    attention, Ainslie et al., 2023, https://arxiv.org/abs/2305.13245).

    Args:
      hidden_dim: width of the residual stream.
      head_dim: size of a head.
      num_heads: query heads; as many as fit the width unless said.
      num_kv_heads: key and value heads; as many as query heads unless said.
      rope: turns (queries, keys) by their positions; None leaves them as they are.
      kernel: computes the attention itself from queries, keys, values and a dropout probability.
      bias: adds a bias to all four projections.
      dropout: probability of dropping an attention weight in training.
      init: start of the query, key and value projections.
      out_init: start of the output projection, `init` unless said.

    Raises:
      ValueError: the width is not a whole number of heads, or query heads of key heads.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        rope: nn.Module | None = None,
        kernel: Kernel = causal_attention,
        bias: bool = False,
        dropout: float = 0.0,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        self.check_arguments(
            hidden_dim=hidden_dim,
            head_dim=head_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
        )
        num_heads = hidden_dim // head_dim if num_heads is None else num_heads
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.kernel = kernel
        self.rope = rope
        self.query = Linear(hidden_dim, num_heads * head_dim, bias=bias, init=init)
        self.key = Linear(hidden_dim, num_kv_heads * head_dim, bias=bias, init=init)
        self.value = Linear(hidden_dim, num_kv_heads * head_dim, bias=bias, init=init)
        self.out = Linear(num_heads * head_dim, hidden_dim, bias=bias, init=out_init or init)

    @staticmethod
    def check_arguments(
        *, hidden_dim: int, head_dim: int, num_heads: int | None, num_kv_heads: int | None
    ) -> None:
        """Raises ValueError unless heads divide the width, and groups the heads."""
        if num_heads is None:
            if head_dim < 1 or hidden_dim % head_dim:
                raise ValueError(
                    f"{hidden_dim=} is not a whole number of heads of {head_dim=}; "
                    "change one of them, or say num_heads."
                )
            num_heads = hidden_dim // head_dim
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(
                f"{num_heads=} cannot be dealt evenly to {num_kv_heads=}: "
                "use a num_kv_heads that divides it."
            )

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        query, key, value = (self._heads(p(x)) for p in (self.query, self.key, self.value))
        if self.rope is not None:
            query, key = self.rope(query, key)
        mixed = self.kernel(query, key, value, self.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def own_flops_per_token(self, seq_len: int) -> int:
        """Scores and their weighted sum, beside the projections; the causal half is not taken off.

        That is the convention of PaLM's appendix B (Chowdhery et al., 2022) and of nanoGPT.
        """
        return 4 * seq_len * self.num_heads * self.head_dim

    def _heads(
        self, x: Float[Tensor, "batch seq width"]
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
