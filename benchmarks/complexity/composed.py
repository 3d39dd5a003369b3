"""A project that uses fidgpt: models and attentions as functions on a graph, features as files.

Before a feature there are only models and attentions. With it, one file more holds the part and
the fiddler that puts it everywhere; the part is the library's own source, copied out of it, so that
it is seen to need nothing but the places that the library leaves open.
"""

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from counting import Tree, logical_lines

import fidgpt.model.blocks
import fidgpt.model.linear
import fidgpt.model.masks
import fidgpt.model.mlp
import fidgpt.model.moe
import fidgpt.model.positions

_MODELS = [
    "use_layer_norm(cfg)",
    "use_post_norm(cfg)",
    "untie_embeddings(cfg)",
    "use_squared_relu(cfg)",
    "use_learned_positions(cfg)",
]
_ATTENTIONS = [
    "attention.bias = True",
    "attention.num_kv_heads = 1",
    "attention.num_heads = 4",
    "attention.out_bias = True",
    "attention.scale = 0.2",
    "attention.sinks = fdl.Partial(attention_sinks)",
    "attention.dropout = 0.1",
    "attention.value_embedding = None",
    "attention.kernel = eager",
    "attention.head_dim = 8",
]


@dataclass(frozen=True)
class Feature:
    """One feature as a file of the project.

    Attributes:
      name: of the file and of its fiddler, after `use_`.
      source: the module of the library that the part is copied from, if it is not torch's.
      parts: names in it.
      fiddler: statements on `cfg`.
      shows: what every model's graph then holds, by its full name.
    """

    name: str
    source: ModuleType | None
    parts: tuple[str, ...]
    fiddler: str
    shows: str


FEATURES = [
    Feature(
        "rope",
        fidgpt.model.positions,
        ("Heads", "KeyHeads", "Waves", "Frequencies", "_frequencies", "RoPE", "_rotated"),
        """rope = fdl.Config(RoPE, head_dim=HeadDim.new())
for attention in find(cfg.model, Attention):
    attention.rope = rope""",
        "lab.features.rope.RoPE",
    ),
    Feature(
        "alibi",
        fidgpt.model.masks,
        ("ALiBi", "alibi_slopes"),
        """for attention in find(cfg.model, Attention):
    attention.scores = [*attention.scores, fdl.Config(ALiBi)]""",
        "lab.features.alibi.ALiBi",
    ),
    Feature(
        "qk_norm",
        None,
        (),
        """for attention in find(cfg.model, Attention):
    attention.query_norm = fdl.ArgFactory(nn.RMSNorm, HeadDim.new())
    attention.key_norm = fdl.ArgFactory(nn.RMSNorm, HeadDim.new())""",
        "torch.nn.modules.normalization.RMSNorm",
    ),
    Feature(
        "softcap",
        fidgpt.model.masks,
        ("Softcap",),
        """for attention in find(cfg.model, Attention):
    attention.scores = [fdl.Config(Softcap, cap=50.0), *attention.scores]""",
        "lab.features.softcap.Softcap",
    ),
    Feature(
        "window",
        fidgpt.model.masks,
        ("Window",),
        """for attention in find(cfg.model, Attention):
    attention.mask = fdl.Config(And, masks=(causal, fdl.Config(Window, size=8)))""",
        "lab.features.window.Window",
    ),
    Feature(
        "swiglu",
        fidgpt.model.mlp,
        ("_FeedForward", "SwiGLU"),
        """for block in find(cfg.model, Block):
    block.mlp = swapped(block.mlp, SwiGLU)""",
        "lab.features.swiglu.SwiGLU",
    ),
    Feature(
        "parallel_block",
        fidgpt.model.blocks,
        ("ParallelBlock",),
        "swap_all(cfg.model, Block, by=ParallelBlock)",
        "lab.features.parallel_block.ParallelBlock",
    ),
    Feature(
        "sandwich_norm",
        fidgpt.model.blocks,
        ("SandwichBlock",),
        """for block in swap_all(cfg.model, Block, by=SandwichBlock):
    block.attention_out_norm = clone_part(block.attention_norm)
    block.mlp_out_norm = clone_part(block.mlp_norm)""",
        "lab.features.sandwich_norm.SandwichBlock",
    ),
    Feature(
        "lora",
        fidgpt.model.linear,
        ("LoRALinear",),
        """for node in parts(cfg.model):
    if "linear" in node.value.__signature_info__.valid_param_names:
        node.value.linear = fdl.Partial(LoRALinear, rank=2)""",
        "lab.features.lora.LoRALinear",
    ),
    Feature(
        "moe",
        fidgpt.model.moe,
        (),
        """for block in find(cfg.model, Block):
    block.mlp = fdl.ArgFactory(
        MoE,
        num_experts=4,
        router=fdl.ArgFactory(
            SoftmaxRouter, hidden_dim=HiddenDim.new(), num_experts=4, top_k=2
        ),
        experts=swapped(block.mlp, GatedExperts),
        balancing=[fdl.ArgFactory(LoadBalancingLoss)],
    )
    block.mlp.experts.num_experts = 4""",
        "lab.features.moe_parts.layer.MoE",
    ),
    Feature(
        "tensor",
        None,
        (),
        "use_mesh(cfg, tensor=2)",
        "fidgpt.parallel.tensor.TensorParallel",
    ),
    Feature(
        "context",
        None,
        (),
        "use_mesh(cfg, context=2)",
        "fidgpt.parallel.context.GatheredContext",
    ),
]

_IMPORTS = """import fiddle as fdl
from torch import nn

from fidgpt.fiddlers import use_mesh
from fidgpt.graph import clone_part, find, parts, swap_all, swapped
from fidgpt.model import *
from fidgpt.tags import HeadDim, HiddenDim
"""


def project(*, models: int, attentions: int, feature: Feature | None = None) -> Tree:
    """The files of a project with so many models and attentions, and perhaps a feature."""
    tree = {"lab/__init__.py": "", "lab/models/__init__.py": "", "lab/attentions/__init__.py": ""}
    tree |= {f"lab/models/m{i}.py": _model(i) for i in range(models)}
    tree |= {f"lab/attentions/a{i}.py": _attention(i) for i in range(attentions)}
    return tree if feature is None else tree | {"lab/features/__init__.py": "", **_files(feature)}


def directives(index: int, attentions: int, feature: Feature) -> list[str]:
    """What a user says to train a model with an attention and the feature, which is the last."""
    attention = index % attentions
    return [
        f"config:lab.models.m{index}.m{index}",
        f"fiddler:lab.attentions.a{attention}.a{attention}",
        f"fiddler:lab.features.{feature.name}.use_{feature.name}",
    ]


def declared(feature: Feature) -> int:
    """Statements by which a feature's own components declare how they are divided."""
    methods = [
        node
        for text in _files(feature).values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "own_split"
    ]
    return sum(logical_lines(ast.unparse(node)) for node in methods)


def _model(index: int) -> str:
    changes = [_MODELS[index % 5], f"cfg.model.num_layers = {1 + index % 3}"]
    body = "\n    ".join(["use_no_positions(cfg)", "use_gelu(cfg)", *changes])
    imports = "from fidgpt.configs import debug\nfrom fidgpt.fiddlers import *\n"
    return f"{imports}\n\ndef m{index}():\n    cfg = debug()\n    {body}\n    return cfg\n"


def _attention(index: int) -> str:
    body = f"for attention in find(cfg.model, Attention):\n        {_ATTENTIONS[index % 10]}"
    return f"{_IMPORTS}\n\ndef a{index}(cfg):\n    {body}\n"


def _files(feature: Feature) -> Tree:
    """The part, copied, and its fiddler."""
    fiddler = f"def use_{feature.name}(cfg):\n    " + feature.fiddler.replace("\n", "\n    ")
    path = f"lab/features/{feature.name}"
    if feature.source is None:
        return {f"{path}.py": f"{_IMPORTS}\n\n{fiddler}\n"}
    if feature.parts:
        return {f"{path}.py": f"{_part(feature)}\n\n{fiddler}\n"}
    own = f"lab.features.{feature.name}_parts"
    folder = Path(feature.source.__path__[0])
    copied = {
        f"{path}_parts/{file.name}": file.read_text().replace(feature.source.__name__, own)
        for file in folder.glob("*.py")
    }
    return copied | {f"{path}.py": f"{_IMPORTS}from {own} import *\n\n\n{fiddler}\n"}


def _part(feature: Feature) -> str:
    """What a module of the library imports, and the named things in it."""
    assert feature.source is not None
    source = inspect.getsource(feature.source)
    rest = [name for name in vars(feature.source) if not name.startswith("__")]
    kept = [f"{_IMPORTS}from {feature.source.__name__} import {', '.join(rest)}"]
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        names = {getattr(one, "name", getattr(one, "id", None)) for one in targets}
        if isinstance(node, ast.Import | ast.ImportFrom) or names & set(feature.parts):
            lines = source.splitlines()
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            kept.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n".join(kept)
