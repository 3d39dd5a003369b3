"""What a model costs to compute, summed over parts that know their own cost."""

from torch import nn

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


def flops_per_token(model: nn.Module, *, seq_len: int) -> int:
    """Floating-point operations of the forward pass for one token of a sequence of `seq_len`.

    A multiply-add counts as two. Each Linear costs twice its weights; a part adds what it computes
    beside its Linears by a method `own_flops_per_token(seq_len)`, and a part that several places
    hold counts at each. Element-wise work is left out, as the field's figures do (Chowdhery et
    al., 2022, appendix B).
    """
    total = 0
    for _, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            total += 2 * module.weight.numel()
        own = getattr(module, "own_flops_per_token", None)
        if own is not None:
            total += own(seq_len)
    return total


def shared_parameters(model: nn.Module) -> dict[str, list[str]]:
    """Every parameter that more than one module holds: its name, and the names it has besides."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {first: others for first, *others in names.values() if others}
