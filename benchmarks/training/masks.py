"""How long a training step takes with masks and changed scores, beside plain causal attention.

    python benchmarks/training/masks.py

All variants are in one process and take turns of a step, round after round. Documents are those of
`base`'s own text, or have 256 tokens. On a shared machine, CPU seconds on one thread vary least.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import machine

from fidgpt.compose.composition import compose
from fidgpt.data import Batch
from fidgpt.heap import use_fast_memory
from fidgpt.model import materialize
from fidgpt.runs import tuning
from fidgpt.runs.building import build_trainer

DOCUMENTS = "fiddler:use_document_mask"
VARIANTS = {
    "plain causal": [],
    "documents": [DOCUMENTS],
    "documents, packed": ["fiddler:use_packing", DOCUMENTS],
    "documents of 256 tokens": [DOCUMENTS],
    "window of 128 in every second layer": ["fiddler:use_sliding_window(window=128)"],
    "ALiBi": ["fiddler:use_alibi"],
    "sinks": ["fiddler:use_sinks"],
    "softcap": ["fiddler:use_softcap"],
}
NUM_STEPS = 10_000  # of the run whose steps are timed: it decides what tuning pays


def step_of(name: str, asked: argparse.Namespace) -> Callable[[int], float]:
    """A function that takes a step of a variant and returns its loss."""
    sizes = {"seq_len": asked.seq_len, "batch_size": asked.batch_size, "num_steps": NUM_STEPS}
    sets = [f"set:{path}={value}" for path, value in sizes.items()]
    made = compose(["config:base", *sets, *VARIANTS[name], *asked.config])
    trainer = build_trainer(made.resolved)
    if choice := tuning.choose(made, trainer):
        print(f"{name}: {choice.reason}")
        trainer = build_trainer(tuning.tuned(made, choice).resolved)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    trainer.stream.prepare(show_progress=False)
    state = trainer.init_state()

    def step(number: int) -> float:
        batch = trainer.stream.batch(number)
        if "256" in name:
            tokens = batch.tokens.clone()
            separator: int = getattr(trainer.model.layout, "end_of_text")  # noqa: B009
            tokens[tokens == separator] = (separator + 1) % trainer.vocab_size
            tokens[:, ::256] = separator
            batch = Batch(tokens)
        state.step = 0
        return trainer.update(state, batch)["loss"]

    return step


def main() -> None:
    """Print one row for each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="all unless said")
    parser.add_argument("--config", action="append", default=[], help="further directives")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--batch_size", type=int, default=8)
    asked = parser.parse_args()
    print(machine(asked.threads))
    use_fast_memory()
    names = list(dict.fromkeys(["plain causal", *(asked.variant or VARIANTS)]))
    steps = {name: step_of(name, asked) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    losses = {name: step(0) for name, step in steps.items()}  # which allocates memory
    for number in range(1, asked.rounds + 1):
        for name, step in steps.items():
            begin, used = time.perf_counter(), time.process_time()
            step(number)
            seconds[name].append(time.perf_counter() - begin)
            cpu[name].append(time.process_time() - used)
    print(
        "\n| | ms, median | times plain, median | fastest | CPU seconds, median | fastest | loss |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    plain, plain_cpu = seconds["plain causal"], cpu["plain causal"]
    for name in names:
        median = statistics.median(seconds[name])
        print(
            f"| {name} | {median * 1e3:,.0f} | {median / statistics.median(plain):.2f} "
            f"| {min(seconds[name]) / min(plain):.2f} "
            f"| {statistics.median(cpu[name]) / statistics.median(plain_cpu):.2f} "
            f"| {min(cpu[name]) / min(plain_cpu):.2f} | {losses[name]:.4f} |"
        )


if __name__ == "__main__":
    main()
