"""GGUF files: llama.cpp writes the same greedy text, and reads conversations as the same tokens."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_models import shrunk, started

from fidgpt import graph
from fidgpt.data import (
    CHAT_TEMPLATES,
    BPETokenizer,
    ByteTokenizer,
    ChatTemplate,
    Tokenizer,
    load_tokenizer,
    template_tokens,
)
from fidgpt.graph import ConfigError
from fidgpt.interop import save_gguf, save_hf
from fidgpt.model.generation import generate
from fidgpt.train.evaluation import prompt_tokens

FAMILIES = {
    "llama3_1_8b": "llama",
    "mistral_7b": "llama",
    "qwen2_5_0_5b": "qwen2",
    "qwen3_0_6b": "qwen3",
    "olmo2_7b": "olmo2",
    "gemma2_2b": "gemma2",
    "gemma3_1b": "gemma3",
    "gpt2_124m": "gpt2",
}
PROMPT = [256, *b"Hello, "]


def model_of(name: str, vocab_size: int = 257) -> Any:
    """A model whose likeliest tokens are far apart."""
    cfg = shrunk(name)
    cfg.vocab_size = vocab_size
    model: Any = started(graph.build(cfg).model).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data += (0.3 if parameter.ndim > 1 else 0.2) * noise
    for block in model.blocks:
        if name == "mistral_7b":
            block.attention.window = None  # which llama.cpp does not read
        if name.startswith("gemma"):
            block.attention.scale = block.attention.head_dim**-0.5
    return model


SERVER = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.cpuparams.n_threads, params.verbosity = 64, 1, 0
params.warmup = False
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCpp:
    """A server of llama.cpp that computes in float32, in a process of its own, which is killed.

    On a machine with other work, the end of a server now and then waits forever.
    """

    def __init__(self, path: Path) -> None:
        pytest.importorskip("xllamacpp")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        self._address = next(line.strip() for line in lines if line.startswith("http"))

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, place: str, **content: Any) -> Any:
        request = urllib.request.Request(
            f"{self._address}/{place}",
            data=json.dumps(content).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=100) as response:
            return json.load(response)


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_llama_cpp(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model, path = model_of(name, vocab_size=272), tmp_path / "model.gguf"
    model.unembedding.weight.data[257:] *= 10  # likelier than all tokens
    seq_len = 32 if name == "gpt2_124m" else 64
    architecture = save_gguf(model, path, seq_len=seq_len, tokenizer=ByteTokenizer())
    assert architecture == FAMILIES[name]
    ours = generate(model, PROMPT, num_tokens=20, context=64, temperature=0.0, vocab_size=257)
    options = {"n_predict": 20, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    with LlamaCpp(path) as server:
        assert server.ask("completion", prompt=PROMPT, **options)["tokens"] == list(ours)


# Settings of tokenizers of the hub: their token in front of texts, and whether they put it there.
HUB = {
    "begins": {"bos_token": "<|begin|>", "add_bos_token": True},  # as in Llama 3
    "is named": {"bos_token": "<|begin|>"},
    "is the end": {"bos_token": "<|endoftext|>"},  # as in OLMo 2
    "begins with the end": {"bos_token": "<|endoftext|>", "add_bos_token": True},
    "has none": {"bos_token": None},  # as in Qwen
}


def tokenizer_of(kind: str, template: str, directory: Path) -> Tokenizer:
    special = template_tokens(template)
    text, end = CHAT_TEMPLATES[template], "<|endoftext|>"
    if kind == "bytes":
        return ByteTokenizer(special_tokens=special).for_chat(text, end_of_text=end)
    trained = BPETokenizer(vocab_size=270, special_tokens=[*special, "<|begin|>"]).build(["a b c"])
    if kind == "trained":
        return trained.for_chat(text, end_of_text=end)
    directory.mkdir()
    trained.save(directory / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, **HUB[kind]}
    settings_file = directory / "tokenizer_config.json"
    settings_file.write_text(json.dumps({**settings, "chat_template": text}))
    return load_tokenizer(directory / "tokenizer.json")


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("template", "kind"),
    [
        *((template, kind) for template in ("chatml", "llama3") for kind in ("bytes", "trained")),
        *(("chatml", kind) for kind in HUB if kind != "begins"),  # which llama.cpp adds to it
        *(("llama3", kind) for kind in HUB),
    ],
)
def test_texts_and_conversations_are_the_same_tokens_elsewhere(
    template: str, kind: str, tmp_path: Path
) -> None:
    """With one token in front at most, in another run, in transformers and in llama.cpp."""
    pytest.importorskip("gguf")
    tokenizer = tokenizer_of(kind, template, tmp_path / "theirs")
    model, path = model_of("qwen2_5_0_5b", vocab_size=272), tmp_path / "model.gguf"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    messages.append({"role": "user", "content": "No."})
    ours = ChatTemplate(tokenizer).prompt(messages, tokenizer)
    plain = prompt_tokens(tokenizer, "Hi")
    ends = ChatTemplate(tokenizer).ends_of_turn()
    assert ours[:2] != [ours[0]] * 2

    save_hf(model, tmp_path / "hub", seq_len=64, tokenizer=tokenizer)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "hub")
    encoded = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert encoded["input_ids"] == ours
    assert theirs("Hi")["input_ids"] == plain
    settings = transformers.GenerationConfig.from_pretrained(tmp_path / "hub")
    assert settings.eos_token_id == [tokenizer.end_of_text, *ends]
    tokenizer.save(tmp_path / "tokenizer.json")
    for directory in (tmp_path, tmp_path / "hub"):
        again = load_tokenizer(directory / "tokenizer.json")
        assert ChatTemplate(again).prompt(messages, again) == ours
        assert prompt_tokens(again, "Hi") == plain

    save_gguf(model, path, seq_len=64, tokenizer=tokenizer)
    options = {"add_special": True, "parse_special": True}
    with LlamaCpp(path) as server:
        text = server.ask("apply-template", messages=messages)["prompt"]
        assert server.ask("tokenize", content=text, **options)["tokens"] == ours
        assert server.ask("tokenize", content="Hi", **options)["tokens"] == plain


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistral_7b", r"llama.cpp has no window=8 below the context of 64\. Export it for trans"),
        ("gemma3_1b", r"has no query_pre_attn_scalar=256 beside head_dim=16"),
        ("gpt_oss_20b", r"gpt_oss cannot become a GGUF file: fidgpt writes llama, mistral"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    model = started(graph.build(shrunk(name)).model)
    with pytest.raises(ConfigError, match=message):
        save_gguf(model, tmp_path / "model.gguf", seq_len=64, tokenizer=ByteTokenizer())
    assert not list(tmp_path.iterdir())
