"""How numbers follow the width in the maximal update parametrisation (arXiv:2203.03466)."""

from fidgpt.ranges import require_size


def output_scale(*, hidden_dim: int, base_dim: int) -> float:
    """Of the logits: base_dim / hidden_dim, so that their size does not follow the width.

    Args:
      hidden_dim: width of the model.
      base_dim: width at which other numbers were tuned.

    Raises:
      ValueError: a width is below 1.
    """
    require_size("hidden_dim", hidden_dim)
    require_size("base_dim", base_dim)
    return base_dim / hidden_dim


def attention_scale(*, head_dim: int, base_head_dim: int) -> float:
    """Of scores: sqrt(base_head_dim) / head_dim, as queries and keys grow alike in training.

    Args:
      head_dim: size of a head.
      base_head_dim: size at which it is the usual 1 / sqrt(head_dim).

    Raises:
      ValueError: a size is below 1.
    """
    require_size("head_dim", head_dim)
    require_size("base_head_dim", base_head_dim)
    return base_head_dim**0.5 / head_dim
