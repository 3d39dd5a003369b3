"""A model of the hub that is read and written again is the same to transformers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from absl import flags
from absl.testing import flagsaver
from small_models import tiered
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fidgpt.cli import export, sample
from fidgpt.data import BPETokenizer, load_tokenizer
from fidgpt.interop import save_hf
from fidgpt.model import LanguageModel

from .more_recipes import MORE_RECIPES
from .recipes import RECIPES, Recipe
from .test_families import random_model

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]

PROMPT = "ab ba  b"


def byte_level(begins: bool) -> Tokenizer:
    """As in Llama 3, with a token in front of texts; or as in Qwen and GPT-2, without."""
    letters = {letter: 3 + i for i, letter in enumerate(["a", "b", "\u0120", "\u010a"])}
    names = ["<s>", "</s>", "<|eot|>"]
    rest = (c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in letters)
    vocabulary = {name: i for i, name in enumerate(names)} | letters
    vocabulary |= {letter: 9 + i for i, letter in enumerate(rest)} | {"ab": 7, "ba": 8}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("b", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(names)
    if begins:
        backend.post_processor = _template()
    return backend


def pieces(prefix: bool) -> Tokenizer:
    """As in Llama 2, with a space in front of texts; or as in Gemma, without."""
    names = ["<s>", "</s>", "<|eot|>"]
    vocabulary = {name: i for i, name in enumerate(names)}
    vocabulary |= {"a": 3, "b": 4, "\u2581": 5, "ab": 6, "\u2581b": 7}
    vocabulary |= {f"<0x{value:02X}>": 8 + value for value in range(256)}
    merges = [("a", "b"), ("\u2581", "b")]
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    parts: list[Any] = [normalizers.Prepend("\u2581")] if prefix else []
    backend.normalizer = normalizers.Sequence([*parts, normalizers.Replace(" ", "\u2581")])
    after: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*after, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    backend.add_special_tokens(names)
    backend.post_processor = _template()
    return backend


def unigram() -> Tokenizer:
    """As in T5 and XGLM: the likeliest pieces, or bytes where there are none."""
    scores = {"<s>": 0.0, "</s>": 0.0, "<|eot|>": 0.0, "\u2581": -2.0, "a": -3.0, "b": -3.1}
    scores |= {"ab": -4.0, "\u2581b": -4.2} | {f"<0x{value:02X}>": -12.0 for value in range(256)}
    backend = Tokenizer(models.Unigram([*scores.items()], unk_id=2, byte_fallback=True))
    backend.normalizer, backend.decoder = (pieces(prefix=False).normalizer, pieces(False).decoder)
    backend.add_special_tokens([*scores][:3])
    return backend


def _template() -> Any:
    return processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])


# The tokenizers that these have, and what their settings say.
KINDS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "llama": (lambda: byte_level(begins=True), {"bos_token": "<s>", "eos_token": "<|eot|>"}),
    "mistral": (lambda: pieces(prefix=True), {"bos_token": "<s>", "eos_token": "</s>"}),
    "gemma": (lambda: pieces(prefix=False), {"bos_token": "<s>", "eos_token": "</s>"}),
    "qwen3": (lambda: byte_level(begins=False), {"bos_token": None, "eos_token": "</s>"}),
    "gpt2": (lambda: byte_level(begins=False), {"bos_token": "</s>", "eos_token": "</s>"}),
    "xglm": (unigram, {"bos_token": "<s>", "eos_token": "</s>"}),
}
# Those that say the same in several words, and one of each kind of layer.
KINDS |= dict.fromkeys(("starcoder2", "gpt_bigcode", "deepseek_v3", "cohere"), KINDS["llama"])
KINDS |= dict.fromkeys(("falcon_h1", "lfm2", "smollm3", "gpt_neo", "mamba2"), KINDS["qwen3"])
KINDS |= dict.fromkeys(("gemma3", "mixtral", "phi3", "gpt_oss", "minimax"), KINDS["mistral"])
KINDS |= dict.fromkeys(("kimi_linear", "qwen3_next", "glm_moe_dsa", "opt"), KINDS["xglm"])
_USUAL = {*[*KINDS][:6], "starcoder2", "falcon_h1", "deepseek_v3", "qwen3_next"}


@pytest.fixture(params=tiered(KINDS, _USUAL))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def recipe_of(kind: str) -> Recipe:
    recipe = RECIPES.get(kind) or MORE_RECIPES[kind]
    lengths = recipe.settings.keys() & {"max_position_embeddings", "n_positions"}
    odd = dict.fromkeys(lengths, 61) | {"vocab_size": KINDS[kind][0]().get_vocab_size()}
    return recipe.changed("", window=recipe.window, **odd)


@pytest.fixture(autouse=True)
def parsed_flags() -> Iterator[None]:
    """The commands have their defaults, in this process."""
    with flagsaver.flagsaver():
        flags.FLAGS.mark_as_parsed()
        yield


@pytest.fixture
def published(kind: str, tmp_path: Path) -> Path:
    """A directory as on the hub, in bfloat16, which stops at two tokens and has a template."""
    directory = tmp_path / "hub"
    model = random_model(recipe_of(kind)).to(torch.bfloat16)
    make, settings = KINDS[kind]
    model.generation_config.update(eos_token_id=[1, 2], temperature=0.3, do_sample=True, top_k=17)
    model.save_pretrained(directory)
    make().save(str(directory / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    more |= {"model_max_length": 48, "additional_special_tokens": ["<|eot|>"]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | more))
    return directory


def written_by_transformers(directory: Path, prompt: str) -> str:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(directory).float().eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    ids = model.generate(**inputs, max_new_tokens=10, do_sample=False, pad_token_id=0)
    # Of bytes that are no character, the library shows more than one replacement.
    return load_tokenizer(directory / "tokenizer.json").decode(ids[0].tolist())


def test_greedy_text_is_that_of_transformers(published: Path, capsys):
    with flagsaver.flagsaver(prompt=[PROMPT], num_tokens=10, temperature=0.0, float32=True):
        sample.main([str(published)])
    assert capsys.readouterr().out == f"{written_by_transformers(published, PROMPT)}\n"


def test_an_export_behaves_as_before(published: Path, kind: str, tmp_path: Path):
    """Logits, text, template, special tokens, generation, length, number format and type."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    export.main([str(published), str(tmp_path / "again")])
    first, again = published, tmp_path / "again"
    assert written_by_transformers(again, PROMPT) == written_by_transformers(first, PROMPT)
    before, after = (AutoConfig.from_pretrained(path).to_dict() for path in (first, again))
    further = {"num_nextn_predict_layers": 0} if "num_nextn_predict_layers" in before else {}
    assert after == before | further | {"_name_or_path": after["_name_or_path"]}
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in (first, again)]
    tokens = torch.arange(3, 40)[None]
    assert torch.equal(models[0](tokens).logits, models[1](tokens).logits)
    assert models[0].generation_config.to_dict() == models[1].generation_config.to_dict()
    theirs, ours = (PreTrainedTokenizerFast.from_pretrained(path) for path in (first, again))
    chat = [{"role": "user", "content": PROMPT}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.model_max_length == theirs.model_max_length


def test_an_export_puts_in_front_of_texts_what_documents_began_with(
    load: Callable[[Path], LanguageModel], tmp_path: Path
):
    """In training, the end of text is in front of each document."""
    from transformers import AutoTokenizer

    random_model(recipe_of("llama")).save_pretrained(tmp_path / "theirs")
    tokenizer = BPETokenizer(vocab_size=300).build([PROMPT * 9])
    save_hf(load(tmp_path / "theirs"), tmp_path / "ours", seq_len=64, tokenizer=tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert theirs(PROMPT)["input_ids"] == [tokenizer.end_of_text, *tokenizer.encode(PROMPT)]
    assert theirs.bos_token == theirs.eos_token == "<|endoftext|>"
    read = load_tokenizer(tmp_path / "ours" / "tokenizer.json")
    assert read.begin_of_text == read.end_of_text == tokenizer.end_of_text
