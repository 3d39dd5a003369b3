"""What is compared: each contestant builds a model and trains for a moment when told to.

Run by training_step.py, one process for each. Nothing of fidgpt or of its peers is imported before
it is wanted, since they may live in different environments.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[Tensor], float]

LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0
WARM_UP_STEPS = 2
TURN_SECONDS = 1.0  # long enough for the caches to be the own ones again


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a model and of its batches; heads of 64, sequences of `seq_len` tokens."""

    hidden_dim: int
    ffn_dim: int
    num_layers: int
    vocab_size: int
    batch_size: int
    seq_len: int = 256

    @property
    def num_heads(self) -> int:
        return self.hidden_dim // 64


BASE = Shape(hidden_dim=256, ffn_dim=704, num_layers=4, vocab_size=1024, batch_size=8, seq_len=128)
GPT2_124M = Shape(hidden_dim=768, ffn_dim=3072, num_layers=12, vocab_size=50_257, batch_size=2)
SHAPES = {"base": BASE, "gpt2_124m": GPT2_124M}


def fidgpt(shape: Shape) -> Step:
    """The step that fidgpt's Trainer takes, with every setting as the named config has it."""
    from fidgpt.train.learner import Learner
    from fidgpt.train.memory import keep_freed_memory

    keep_freed_memory()
    trainer = _trainer(shape)
    learner = Learner(
        trainer.model,
        optimizer=trainer.optimizer,
        groups=trainer.groups,
        schedule=trainer.schedule,
        loss=trainer.loss,
        precision=trainer.precision,
        parallel=trainer.parallel,
        micro_batch_size=trainer.micro_batch_size,
        max_grad_norm=trainer.max_grad_norm,
    )
    return lambda batch: learner.update(batch, step=0)["loss"]


def pytorch(shape: Shape, **options: Any) -> Step:
    """A loop as one writes it by hand, on fidgpt's model with torch's own norm and attention."""
    from fidgpt.model import Attention, RMSNorm, sdpa

    model = _trainer(shape).model
    for module in list(model.modules()):
        if isinstance(module, Attention):
            module.kernel = sdpa
        for name, child in module.named_children():
            if isinstance(child, RMSNorm):
                setattr(module, name, nn.RMSNorm(shape.hidden_dim, eps=child.eps))
    return _loop(model, model, **options)


def transformers(shape: Shape, **options: Any) -> Step:
    """Hugging Face's GPT-2, and its Llama where the shape is one with RoPE, RMSNorm and SwiGLU."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if shape == GPT2_124M:
        model = GPT2LMHeadModel(
            GPT2Config(n_positions=shape.seq_len, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        )
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=shape.hidden_dim,
                intermediate_size=shape.ffn_dim,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                vocab_size=shape.vocab_size,
                max_position_embeddings=shape.seq_len,
                tie_word_embeddings=True,
            )
        )
    model.train()
    return _loop(model, lambda tokens: model(tokens, use_cache=False).logits, **options)


def litgpt(shape: Shape, **options: Any) -> Step:
    """The GPT of litgpt, its table tied by hand; it has no learned positions but always rotates."""
    from litgpt import GPT, Config  # pyright: ignore[reportMissingImports]

    if shape == GPT2_124M:
        parts: dict[str, Any] = dict(norm_class_name="LayerNorm", mlp_class_name="GptNeoxMLP")
    else:
        parts = dict(norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", rotary_percentage=1.0)
    config = Config(
        block_size=shape.seq_len,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        n_embd=shape.hidden_dim,
        intermediate_size=shape.ffn_dim,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        parallel_residual=False,
        bias=shape == GPT2_124M,
        gelu_approximate="tanh",
        **parts,
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return _loop(model, model, **options)


FLOAT32 = dict(fused=None, autocast=False)
AUTOCAST = dict(fused=True, autocast=True)
CONTESTANTS: dict[str, Callable[[Shape], Step]] = {
    "PyTorch, float32": partial(pytorch, **FLOAT32),
    "PyTorch, bf16 autocast, fused AdamW": partial(pytorch, **AUTOCAST),
    "litgpt, float32": partial(litgpt, **FLOAT32),
    "litgpt, bf16 autocast, fused AdamW": partial(litgpt, **AUTOCAST),
    "transformers, float32": partial(transformers, **FLOAT32),
    "transformers, bf16 autocast, fused AdamW": partial(transformers, **AUTOCAST),
    "fidgpt, as it comes": fidgpt,
}


def _loop(
    model: nn.Module,
    logits_of: Callable[[Tensor], Tensor],
    *,
    fused: bool | None,
    autocast: bool,
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)

    def step(batch: Tensor) -> float:
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            logits = logits_of(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        return loss.item()

    return step


def _trainer(shape: Shape) -> Any:
    """The trainer of the named config, with a model that has its values."""
    from fidgpt import configs
    from fidgpt.graph import build
    from fidgpt.model import materialize

    cfg = configs.gpt2_124m() if shape == GPT2_124M else configs.base()
    cfg.seq_len = shape.seq_len
    cfg.batch_size = shape.batch_size
    trainer = build(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return trainer


def main() -> None:
    """Says how many parameters there are; then takes a turn for every line that comes in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("contestant", choices=CONTESTANTS)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    torch.manual_seed(0)
    step = CONTESTANTS[arguments.contestant](shape)
    batch = torch.randint(0, shape.vocab_size, (shape.batch_size, shape.seq_len + 1))
    for _ in range(WARM_UP_STEPS):
        step(batch)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        seconds: list[float] = []
        while sum(seconds) < TURN_SECONDS:
            begin = time.perf_counter()
            step(batch)
            seconds.append(time.perf_counter() - begin)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_memory": peak}), flush=True)


if __name__ == "__main__":
    main()
