"""Tests of components of your own, as a run tries them before its first step."""

import inspect

import torch
from torch import nn

from fidgpt.model import Embedding, LanguageModel
from fidgpt.train import ComponentError
from fidgpt.train.checks.module_trials import ModuleTrial


def check_component(
    module: nn.Module,
    *,
    hidden_dim: int,
    vocab_size: int = 257,
    seq_len: int = 48,
    context: int = 1,
) -> None:
    """Check the output, the gradients and the reads of a part of a model, or of a model.

    A copy is initialized as in a run. One whose `forward` takes a single argument, or that sets
    `takes_context`, computes on each token alone, as an MLP or a norm does; others get a context
    too, as mixers and blocks do.

    Args:
      module: the module to try, which is left unchanged.
      hidden_dim: width of the residual stream.
      vocab_size: number of tokens, for an embedding or a model.
      seq_len: tokens of a row.
      context: processes that share each row, as in `use_mesh(context=2)`.

    Raises:
      ComponentError: it returns a wrong shape or NaN, reads what it may not (later tokens, padding,
        other documents), or has parameters that get no gradient.
    """
    is_alone = len(inspect.signature(module.forward).parameters) == 1
    is_alone = is_alone or getattr(module, "takes_context", False)
    gets_tokens = isinstance(module, Embedding | LanguageModel)
    inputs = "tokens" if gets_tokens else "stream" if is_alone else "stream, context"
    device = torch.device("cpu")
    trial = ModuleTrial(module, inputs, hidden_dim, vocab_size, seq_len, device)
    with torch.random.fork_rng(devices=[]):
        errors = [*trial.errors(context=context)]
        trained = [name for name, each in module.named_parameters() if each.requires_grad]
        if not errors and (missing := trial.missing_gradients(trained)):
            errors = [missing]
    if errors:
        raise ComponentError("\n".join(f"{type(module).__name__} {text}" for text in errors))
