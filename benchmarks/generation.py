"""Generation speed in tokens/s of fidgpt and of transformers' `generate`, for GPT-2 124M.

    python benchmarks/generation.py                         # requires transformers
    python benchmarks/generation.py --draft_layers=1 --draft_layers=12      # speculative decoding
    python benchmarks/generation.py --device=cuda

All decode greedily from one prompt, in turn, for several rounds in one process, so that other load
affects them equally. A round includes reading the prompt and generating all tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from training.machine import gpu, machine

from fidgpt.model import LanguageModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Writer = Callable[[list[int], int], list[int]]
accepted: dict[int, float] = {}  # share of proposed tokens, by the layers of the draft


def fidgpt_model(dtype: torch.dtype, device: torch.device) -> LanguageModel:
    """Return GPT-2 124M from its named config, with random weights."""
    from fidgpt import configs
    from fidgpt.graph import build
    from fidgpt.model import materialize

    model: Any = build(configs.gpt2_124m()).model
    materialize(model, device=device, seed=0)
    return model.to(dtype).eval()


def fidgpt(
    dtype: torch.dtype, device: torch.device, *, prepared: bool = True, draft_layers: int = 0
) -> Writer:
    """Return fidgpt's generation, with weights laid out as by `sample`, or as in training.

    Args:
      dtype: number format.
      device: where it computes.
      prepared: whether weights are laid out for generation.
      draft_layers: number of the model's first layers that make a draft; 0 for no draft.
    """
    from fidgpt.model.generation import Draft, generate, prepare_to_write

    model = fidgpt_model(dtype, device)
    draft = None
    if draft_layers:
        smaller: Any = fidgpt_model(dtype, device)  # from the same seed
        smaller.blocks = smaller.blocks[:draft_layers]
        prepare_to_write(smaller)
        draft = Draft(smaller, context=1024)
    if prepared:
        prepare_to_write(model)

    def write(prompt: list[int], num_tokens: int) -> list[int]:
        options: dict[str, Any] = dict(context=1024, temperature=0.0, top_k=None, draft=draft)
        written = list(generate(model, prompt, num_tokens=num_tokens, **options))
        if draft is not None:
            accepted[draft_layers] = draft.num_accepted / max(1, draft.num_proposed)
        return written

    return write


def transformers(dtype: torch.dtype, device: torch.device) -> Writer:
    """Return GPT2LMHeadModel's `generate` with default settings: eager, SDPA, a dynamic cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: Any = GPT2LMHeadModel(GPT2Config(eos_token_id=None)).to(device, dtype).eval()

    def write(prompt: list[int], num_tokens: int) -> list[int]:
        tokens = torch.tensor([prompt], device=device)
        present = torch.ones_like(tokens)
        options = dict(max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
        written = model.generate(tokens, attention_mask=present, **options)
        return written[0, len(prompt) :].tolist()

    return write


def writers(dtype: torch.dtype, device: torch.device, drafts: list[int]) -> dict[str, Writer]:
    """Return the implementations to compare, the baseline first: fidgpt's own with drafts."""
    if drafts:
        names = {f"draft of {count} layers": count for count in drafts}
        drafted = {k: fidgpt(dtype, device, draft_layers=count) for k, count in names.items()}
        return {"fidgpt": fidgpt(dtype, device), **drafted}
    return {
        "transformers": transformers(dtype, device),
        "fidgpt, weights as in training": fidgpt(dtype, device, prepared=False),
        "fidgpt": fidgpt(dtype, device),
    }


def compare(
    dtype: torch.dtype,
    device: torch.device,
    *,
    rounds: int,
    prompt_tokens: int,
    num_tokens: int,
    drafts: list[int],
) -> dict[str, list[float]]:
    """Return the seconds of each implementation in every round."""
    prompt = torch.randint(0, 50_000, (prompt_tokens,)).tolist()
    contestants = writers(dtype, device, drafts)
    for write in contestants.values():
        write(prompt, 4)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, write in contestants.items():
            begin = time.perf_counter()
            written = write(prompt, num_tokens)
            seconds[name].append(time.perf_counter() - begin)
            assert len(written) == num_tokens
    return seconds


def table(dtype: str, seconds: dict[str, list[float]], *, num_tokens: int) -> str:
    """Return a table of tokens/s and speedups: medians, and the range over rounds."""
    base = next(iter(seconds.values()))
    lines = []
    for name, own in seconds.items():
        ratios = sorted(theirs / ours for theirs, ours in zip(base, own, strict=True))
        lines.append(
            f"| {dtype} | {name} | {num_tokens / statistics.median(own):.1f} "
            f"| {statistics.median(ratios):.2f} | {ratios[0]:.2f} {ratios[-1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print a table per dtype."""
    parser = argparse.ArgumentParser(description="Generation with fidgpt and with transformers.")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="defaults to all")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt_tokens", type=int, default=32)
    parser.add_argument("--num_tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--draft_layers", type=int, action="append", default=[])
    arguments = parser.parse_args()
    print(machine(arguments.threads) if arguments.device.type == "cpu" else gpu())
    torch.manual_seed(0)
    print("\n| | | tokens/s | times, median | rounds from to |\n|---|---|---|---|---|")
    for dtype in arguments.dtype or DTYPES:
        seconds = compare(
            DTYPES[dtype],
            arguments.device,
            rounds=arguments.rounds,
            prompt_tokens=arguments.prompt_tokens,
            num_tokens=arguments.num_tokens,
            drafts=arguments.draft_layers,
        )
        print(table(dtype, seconds, num_tokens=arguments.num_tokens), flush=True)
        for count, share in accepted.items():
            print(f"  {share:.0%} of the tokens that {count} layers proposed were accepted")


if __name__ == "__main__":
    main()
