"""What docstrings document of callables and of their parameters."""

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.graph.docs import Docs, doc_of, first_sentence


def painted(color: str, *layers: int, gloss: float = 0.5) -> None:
    """Paints a wall. It dries by itself.

    Args:
      color: what it looks like,
        from near and from far.
      *layers: how thick each one is.
      gloss (float): how much it shines
    """


PAINTED = {
    "color": "what it looks like, from near and from far.",
    "layers": "how thick each one is.",
    "gloss": "how much it shines",
}


class Wall:
    """Stands around a room (see Brick et al., 1999, for why)."""

    def __init__(self, height: int, width: int = 2) -> None:
        """Builds it.

        Args:
          height: how high it is.
          width: how wide it is.
        """


class Thick(Wall):
    """Keeps the noise out.

    Args:
      width: how thick it is.
    """


@dataclass
class Brick:
    """Is laid on others.

    Attributes:
      clay: what it is burnt from.
    """

    clay: str


@dataclass
class Plain:
    clay: str


class Painter:
    def __call__(self, wall: Wall) -> None:
        """Is called to paint."""


@pytest.mark.parametrize(
    ("described", "summary", "parameters"),
    [
        (painted, "Paints a wall.", PAINTED),
        (functools.partial(functools.partial(painted, "red"), 2), "Paints a wall.", PAINTED),
        (Wall, "Stands around a room (see Brick et al., 1999, for why).",
         {"height": "how high it is.", "width": "how wide it is."}),
        (Thick, "Keeps the noise out.", {"width": "how thick it is.", "height": "how high it is."}),
        (Brick, "Is laid on others.", {"clay": "what it is burnt from."}),
        (Plain, "", {}),
        (lambda: None, "", {}),
    ],
)  # fmt: skip
def test_docs(described: Any, summary: str, parameters: dict[str, str]) -> None:
    assert doc_of(described) == Docs(summary, parameters)


def test_torch_describes_its_own() -> None:
    adamw = doc_of(torch.optim.AdamW).parameters
    assert adamw["eps"].startswith("term added to the denominator to improve")
    assert adamw["betas"].startswith("coefficients used for computing running averages")
    norm = doc_of(nn.LayerNorm)
    assert norm.summary == "Applies Layer Normalization over a mini-batch of inputs."
    assert norm.parameters["normalized_shape"] == "input shape from an expected input of size"
    assert norm.parameters["elementwise_affine"].startswith("a boolean value that when set to `")
    assert "otherwise" not in norm.parameters["bias"]


def test_no_docs() -> None:
    assert doc_of(Painter()).summary == ""
    broken = functools.partial(painted)
    broken.__doc__ = "Args:\n  :::"
    assert doc_of(broken) == doc_of(painted)


def test_the_first_sentence() -> None:
    assert first_sentence("Width of the stream, in elements.\n\nAnd more.") == (
        "Width of the stream, in elements."
    )
    assert first_sentence("Half of it, e.g. 3.5 of 7. The rest waits.") == (
        "Half of it, e.g. 3.5 of 7."
    )
    assert first_sentence("Two\n    lines. More") == "Two lines."
    assert first_sentence("no end\n\nmore") == "no end"
    assert first_sentence(":class:`~torch.Tensor` and ``code`` are plain.") == (
        "torch.Tensor and `code` are plain."
    )
