"""What is compared: each contestant holds GPT-2 124M and writes greedily on demand.

Run by speed.py, one process for each. Nothing of fidgpt or of its peers is imported before it is
wanted, since they may live in different environments.
"""

import argparse
import ctypes
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXT = 1024
LAYERS, HEADS, WIDTH, VOCAB = 12, 12, 768, 50_257

# Yields whenever every row has one more token.
Writing = Iterator[None]
Writer = Callable[[list[list[int]], int], Writing]


def fidgpt(
    dtype: torch.dtype,
    device: torch.device,
    *,
    prepared: bool = True,
    draft_layers: int = 0,
) -> Writer:
    """The function `write` of fidgpt, with weights laid out as by the command `sample`.

    Args:
      dtype: number format.
      device: where it computes.
      prepared: whether weights are laid out for generation; otherwise as in training.
      draft_layers: number of the model's first layers that make a draft; 0 for no draft.
    """
    from fidgpt import configs
    from fidgpt.graph import build
    from fidgpt.model import materialize
    from fidgpt.model.generation import Draft, Sampling, prepare_to_write, write

    def filled() -> Any:
        model: Any = build(configs.gpt2_124m()).model
        materialize(model, device=device, seed=0)
        return model.to(dtype).eval()

    model, draft = filled(), None
    if prepared:
        prepare_to_write(model)
    if draft_layers:
        smaller = filled()
        smaller.blocks = smaller.blocks[:draft_layers]
        prepare_to_write(smaller)
        draft = Draft(smaller, context=CONTEXT)

    def writing(prompts: list[list[int]], num_tokens: int) -> Writing:
        choose = Sampling(seeds=[0] * len(prompts), temperature=0.0, top_k=None)
        sizes: dict[str, Any] = {"num_tokens": num_tokens, "context": CONTEXT}
        for _ in write(model, prompts, choose=choose, draft=draft, **sizes):
            yield

    return writing


def transformers(
    dtype: torch.dtype, device: torch.device, *, compiled: bool = False, frozen: bool = False
) -> Writer:
    """GPT2LMHeadModel in a loop over argmax, which takes less time than `generate` does.

    Args:
      dtype: number format.
      device: where it computes.
      compiled: whether it has a static cache and `torch.compile`; otherwise a dynamic one.
      frozen: whether the compiler may pack weights, which makes them constants.
    """
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

    model: Any = GPT2LMHeadModel(GPT2Config()).to(device, dtype).eval()

    def step(tokens: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        places = {"position_ids": positions.unsqueeze(0)}
        out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, **places)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    options: Any = {"freezing": True} if frozen else None
    compute: Any = torch.compile(step, dynamic=False, options=options) if compiled else step

    def writing(prompts: list[list[int]], num_tokens: int) -> Writing:
        tokens = torch.tensor(prompts, device=device)
        positions = torch.arange(tokens.shape[1], device=device)
        length = tokens.shape[1] + num_tokens
        cache: Any = DynamicCache(config=model.config)
        if compiled:
            cache = StaticCache(config=model.config, max_cache_len=length)
        for _ in range(num_tokens):
            with torch.inference_mode() if not compiled else torch.no_grad():
                tokens = compute(tokens, positions, cache).clone()
            positions = positions[-1:] + 1
            yield

    return writing


def llama_cpp(dtype: torch.dtype, device: torch.device, *, batch_size: int) -> Writer:
    """llama.cpp on a file of GPT-2 with random weights, all rows in one batch."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    c: Any = llama_cpp
    silent = c.llama_log_callback(lambda *_: None)
    c.llama_log_set(silent, None)
    c.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpt2.gguf")
        _write_gguf(path, dtype)
        options = c.llama_model_default_params()
        options.load_mode = c.LLAMA_LOAD_MODE_NONE  # its pages of the file would be small
        options.n_gpu_layers = 0 if device.type == "cpu" else LAYERS + 1
        model = c.llama_model_load_from_file(str(path).encode(), options)
    settings = c.llama_context_default_params()
    settings.n_ctx = CONTEXT * batch_size
    settings.n_batch = settings.n_ubatch = CONTEXT
    settings.n_seq_max = batch_size
    settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
    context = c.llama_init_from_model(model, settings)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    def read(rows: list[list[int]], begin: int) -> list[int]:
        """Reads more tokens of each row, and returns the likeliest token of each."""
        batch = c.llama_batch_init(sum(map(len, rows)), 0, 1)
        place, last = 0, []
        for number, row in enumerate(rows):
            for column, token in enumerate(row):
                batch.token[place] = token
                batch.pos[place] = begin + column
                batch.n_seq_id[place] = 1
                batch.seq_id[place][0] = number
                batch.logits[place] = column == len(row) - 1
                place += 1
            last.append(place - 1)
        batch.n_tokens = place
        assert c.llama_decode(context, batch) == 0
        chosen = []
        for index in last:
            logits = ctypes.cast(
                c.llama_get_logits_ith(context, index), ctypes.POINTER(ctypes.c_float * vocabulary)
            )
            chosen.append(int(torch.frombuffer(logits.contents, dtype=torch.float32).argmax()))
        c.llama_batch_free(batch)
        return chosen

    def writing(prompts: list[list[int]], num_tokens: int) -> Writing:
        assert silent is not None  # kept for as long as the library may call it
        c.llama_memory_clear(c.llama_get_memory(context), True)
        rows, begin = prompts, 0
        for _ in range(num_tokens):
            chosen = read(rows, begin)
            begin += len(rows[0])
            rows = [[token] for token in chosen]
            yield

    return writing


def _write_gguf(path: Path, dtype: torch.dtype) -> None:
    """Writes GPT-2 124M in llama.cpp's format, with matrices of a number format."""
    import gguf  # pyright: ignore[reportMissingImports]

    writer = gguf.GGUFWriter(str(path), "gpt2")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(VOCAB)
    kinds = gguf.GGMLQuantizationType
    kind = {torch.float32: kinds.F32, torch.bfloat16: kinds.BF16}[dtype]

    def add(name: str, *shape: int) -> None:
        values = torch.randn(shape) / math.sqrt(shape[-1])
        is_matrix = len(shape) > 1 and name != "position_embd.weight"
        own = kind if is_matrix else kinds.F32
        data = gguf.quants.quantize(values.numpy(), own)
        writer.add_tensor(name, data, raw_dtype=own)

    add("token_embd.weight", VOCAB, WIDTH)
    add("position_embd.weight", CONTEXT, WIDTH)
    for part in ("weight", "bias"):
        add(f"output_norm.{part}", WIDTH)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            for part in ("weight", "bias"):
                add(f"{prefix}.{norm}.{part}", WIDTH)
        for name, rows, columns in (
            ("attn_qkv", 3 * WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", 4 * WIDTH, WIDTH),
            ("ffn_down", WIDTH, 4 * WIDTH),
        ):
            add(f"{prefix}.{name}.weight", rows, columns)
            add(f"{prefix}.{name}.bias", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


CONTESTANTS: dict[str, Callable[..., Writer]] = {
    "transformers, eager": transformers,
    "transformers, static cache, compiled": partial(transformers, compiled=True),
    "transformers, static cache, compiled and frozen": partial(
        transformers, compiled=True, frozen=True
    ),
    "llama.cpp": llama_cpp,
    "fidgpt": fidgpt,
    "fidgpt, weights as in training": partial(fidgpt, prepared=False),
    "fidgpt, draft of 1 layer": partial(fidgpt, draft_layers=1),
    "fidgpt, draft of 12 layers": partial(fidgpt, draft_layers=LAYERS),
}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu beside other programs


def main() -> None:
    """Says that it is warm; then writes for every line that comes in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--prompt_tokens", type=int, required=True)
    parser.add_argument("--num_tokens", type=int, required=True)
    parser.add_argument("--clock", choices=CLOCKS, required=True)
    asked = parser.parse_args()
    torch.manual_seed(0)
    options = {"batch_size": asked.batch_size} if asked.contestant == "llama.cpp" else {}
    write = CONTESTANTS[asked.contestant](DTYPES[asked.dtype], asked.device, **options)
    prompts = torch.randint(0, 50_000, (asked.batch_size, asked.prompt_tokens)).tolist()
    for _ in range(2):
        assert len(list(write(prompts, asked.num_tokens))) == asked.num_tokens
    print(json.dumps({"torch": torch.__version__}), flush=True)
    clock = CLOCKS[asked.clock]
    for _ in sys.stdin:
        times = [clock()]
        for _ in write(prompts, asked.num_tokens):
            if asked.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(clock())
        step = (times[-1] - times[1]) / (asked.num_tokens - 1)
        row = {"prefill": times[1] - times[0], "step": step}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
