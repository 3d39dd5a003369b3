"""How numbers follow the width in the maximal update parametrisation (arXiv:2203.03466)."""


def output_scale(*, hidden_dim: int, base_dim: int) -> float:
    """Of the logits: base_dim / hidden_dim, so that their size does not follow the width.

    Args:
      hidden_dim: width of the model.
      base_dim: width at which other numbers were tuned.
    """
    return base_dim / hidden_dim


def attention_scale(*, head_dim: int, base_head_dim: int) -> float:
    """Of scores: sqrt(base_head_dim) / head_dim, as queries and keys grow alike in training.

    Args:
      head_dim: size of a head.
      base_head_dim: size at which it is the usual 1 / sqrt(head_dim).
    """
    return base_head_dim**0.5 / head_dim
