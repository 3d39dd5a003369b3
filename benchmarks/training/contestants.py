"""What is compared: each contestant builds a model and trains for a moment when told to.

Run by step.py, one process for each. Nothing of fidgpt or of its peers is imported before it is
wanted, since they may live in different environments.
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
from shapes import SHAPES, Shape
from torch import Tensor, nn

Step = Callable[[Tensor], float]

LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0
WARM_UP_STEPS = 2
NUM_STEPS = 10_000  # of the run whose steps are timed: it decides whether compiling pays
TURN_SECONDS = 1.0  # long enough for the caches to be the own ones again


@dataclass(frozen=True)
class Task:
    """What every contestant of a table trains, and where."""

    shape: Shape
    batch_size: int
    device: torch.device


def fidgpt(task: Task, *fiddlers: str) -> Step:
    """The step that fidgpt's Trainer takes, with every setting as the named config has it."""
    from fidgpt.data import Batch
    from fidgpt.heap import use_fast_memory

    use_fast_memory()
    trainer = _trainer(task, *fiddlers, is_tuned=True)
    state = trainer.init_state()

    def step(batch: Tensor) -> float:
        state.step = 0
        return trainer.update(state, Batch(batch))["loss"]

    return step


def plain(task: Task, **options: Any) -> Step:
    """A model and a loop as one writes them by hand, as nanoGPT's."""
    from plain import Decoder

    model = Decoder(task.shape).to(task.device)
    return _loop(model, model, task.device, **options)


def transformers(task: Task, *, experts: str = "eager", **options: Any) -> Step:
    """Hugging Face's GPT-2, OLMoE, or its Llama, as the shape is.

    Args:
      task: what is trained.
      experts: how transformers computes the experts of a mixture.
      **options: of the loop.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    shape = task.shape
    model: Any
    if shape.num_experts:
        model = _olmoe(shape, experts=experts)
    elif shape.has_learned_positions:
        model = GPT2LMHeadModel(
            GPT2Config(
                n_positions=shape.seq_len,
                n_embd=shape.hidden_dim,
                n_layer=shape.num_layers,
                n_head=shape.num_heads,
                vocab_size=shape.vocab_size,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=shape.hidden_dim,
                intermediate_size=shape.ffn_dim,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_kv_heads,
                vocab_size=shape.vocab_size,
                max_position_embeddings=shape.seq_len,
                tie_word_embeddings=shape.is_tied,
            )
        )
    model.train().to(task.device)
    logits_of = lambda tokens: model(tokens, use_cache=False).logits  # noqa: E731
    return _loop(model, logits_of, task.device, **options)


def _olmoe(shape: Shape, *, experts: str) -> nn.Module:
    """OLMoE, which has no shared expert; its router normalizes the weights, as fidgpt's does."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = OlmoeConfig(
        hidden_size=shape.hidden_dim,
        intermediate_size=shape.ffn_dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.top_k,
        norm_topk_prob=True,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.seq_len,
        tie_word_embeddings=shape.is_tied,
        pad_token_id=None,
        eos_token_id=None,
        experts_implementation=experts,
    )
    return OlmoeForCausalLM(config)


WAYS: dict[str, dict[str, Any]] = {
    "float32": dict(fused=None, autocast=False, compiled=False),
    "float32, fused AdamW, compiled": dict(fused=True, autocast=False, compiled=True),
    "bf16 autocast, fused AdamW": dict(fused=True, autocast=True, compiled=False),
    "bf16 autocast, fused AdamW, compiled": dict(fused=True, autocast=True, compiled=True),
}
CONTESTANTS: dict[str, Callable[[Task], Step]] = {
    f"{name}, {way}": partial(peer, **options)
    for name, peer in (("PyTorch", plain), ("transformers", transformers))
    for way, options in WAYS.items()
}
for way in ("float32", "bf16 autocast"):
    for experts, suffix in (("eager", ""), ("grouped_mm", ", grouped")):
        CONTESTANTS[f"OLMoE, {way}{suffix}"] = partial(
            transformers, experts=experts, fused=True, autocast=way != "float32", compiled=False
        )
CONTESTANTS["fidgpt, as it comes"] = fidgpt
CONTESTANTS["fidgpt, fiddler:use_compile"] = lambda task: fidgpt(task, "fiddler:use_compile")


def _loop(
    model: nn.Module,
    logits_of: Callable[[Tensor], Tensor],
    device: torch.device,
    *,
    fused: bool | None,
    autocast: bool,
    compiled: bool,
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)

    def loss_of(batch: Tensor) -> Tensor:
        logits = logits_of(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    if compiled:
        loss_of = torch.compile(loss_of)

    def step(batch: Tensor) -> float:
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        return loss.item()

    return step


def _trainer(task: Task, *fiddlers: str, is_tuned: bool = False) -> Any:
    """The trainer of the named config, with a model that has its values.

    Args:
      task: what is trained.
      fiddlers: further directives.
      is_tuned: whether it computes as a run of many steps would, by what is measured here.
    """
    from fidgpt.compose.composition import compose
    from fidgpt.model import materialize
    from fidgpt.runs import tuning
    from fidgpt.runs.building import build_trainer

    made = compose(
        [*task.shape.directives(task.batch_size), f"set:num_steps={NUM_STEPS}", *fiddlers]
    )
    trainer = build_trainer(made.resolved)
    if is_tuned and (choice := tuning.choose(made, trainer)):
        print(f"tuning: {choice.reason}", file=sys.stderr)
        trainer = build_trainer(tuning.tuned(made, choice).resolved)
    materialize(trainer.model, device=task.device, seed=0)
    return trainer


def peak_memory(device: torch.device) -> int:
    """Bytes: all of the process on a CPU, and what tensors took on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Says that it is warm; then takes a turn for every line that comes in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--clock", required=True)
    asked = parser.parse_args()
    shape = SHAPES[asked.shape]
    torch.manual_seed(0)
    step = CONTESTANTS[asked.contestant](Task(shape, asked.batch_size, asked.device))
    size = (asked.batch_size, shape.seq_len + 1)
    batch = torch.randint(0, shape.vocab_size, size).to(asked.device)
    losses = [step(batch)]
    print(json.dumps({"torch": torch.__version__}), flush=True)
    losses += [step(batch) for _ in range(WARM_UP_STEPS)]
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[asked.clock]
    for _ in sys.stdin:
        seconds: list[float] = []
        while sum(seconds) < TURN_SECONDS:
            begin = clock()
            losses.append(step(batch))
            seconds.append(clock() - begin)
        row = {"seconds": seconds, "peak_memory": peak_memory(asked.device), "losses": losses[:3]}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
