"""What the parts of a model say that they compute."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


class Operations(NamedTuple):
    """What one module computes for a token.

    Attributes:
      path: of the module, as in `named_modules`.
      linear: floating-point operations of a Linear's product with its weight.
      own: what it computes besides, as its `own_flops_per_token` says.
    """

    path: str
    linear: int
    own: int


def operations(model: nn.Module, *, seq_len: int) -> Iterator[Operations]:
    """Every module that computes; one that several places hold comes at each."""
    for path, module in model.named_modules(remove_duplicate=False):
        linear = 2 * module.weight.numel() if isinstance(module, nn.Linear) else 0
        says = getattr(module, "own_flops_per_token", None)
        own = 0 if says is None else says(seq_len)
        if linear or own:
            yield Operations(path, linear, own)


def flops_per_token(model: nn.Module, *, seq_len: int) -> int:
    """Floating-point operations of the forward pass for one token of a sequence of `seq_len`.

    A multiply-add counts as two. Each Linear costs twice its weights; a part adds what it computes
    beside its Linears by a method `own_flops_per_token(seq_len)`, and a part that several places
    hold counts at each. Element-wise work is left out, as the field's figures do (Chowdhery et
    al., 2022, appendix B), and so is that of parts which say nothing: see `unsaid_flops`.

    A token of a causal attention counts the scores of all `seq_len` tokens, or of its window, and
    not only of those before it: PaLM, nanoGPT and torch's own counter do so too. A mixture of
    experts counts those that a token goes to.
    """
    return sum(linear + own for _, linear, own in operations(model, seq_len=seq_len))
