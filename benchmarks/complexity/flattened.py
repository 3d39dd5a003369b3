"""The same features in a code base without places for them: the negative control.

Each attention is a class written out, and each model a file with its MLP, its block and its stack,
as grown research code has them. A feature is written into every one that shall have it.
"""

from counting import Tree

_ATTENTION = """import torch
import torch.nn.functional as F
from torch import nn
{imports}

class Attention{index}(nn.Module):
    def __init__(self, dim, heads{arguments}):
        super().__init__()
        self.heads, self.scale = heads, {scale}
        self.query = {linear}(dim, dim, bias={bias})
        self.key = {linear}(dim, dim, bias={bias})
        self.value = {linear}(dim, dim, bias={bias})
        self.out = {out}(dim, dim, bias={bias})
{init}
    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
{heads}
        scores = query @ key.mT * self.scale
{scores}
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
{mask}
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))
"""

_MODEL = """import torch
import torch.nn.functional as F
from torch import nn

from attentions.a{attention} import Attention{attention}
{imports}

class MLP{index}(nn.Module):
    def __init__(self, dim, inner{mlp_arguments}):
        super().__init__()
{mlp_init}

    def forward(self, x):
{mlp}


class Block{index}(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention_norm = nn.{norm}(dim)
        self.attention = Attention{attention}(dim, heads{values})
        self.mlp_norm = nn.{norm}(dim)
        self.mlp = MLP{index}(dim, {ratio} * dim{mlp_values})
{block_init}
    def forward(self, x):
{block}


class Model{index}(nn.Module):
    def __init__(self, vocab=257, dim=32, heads=2, layers={layers}):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block{index}(dim, heads) for _ in range(layers))
        self.norm = nn.{norm}(dim)

    def forward(self, tokens):
        x = self.table(tokens)
{stack}
        return {result}
"""

# What stands at each of the places above without a feature, and with each.
_PLAIN = {
    "imports": "",
    "arguments": "",
    "values": "",
    "linear": "nn.Linear",
    "out": "nn.Linear",
    "init": "",
    "heads": "",
    "scores": "",
    "mask": "",
    "mlp_arguments": "",
    "mlp_values": "",
    "mlp_init": """        self.up = nn.Linear(dim, inner)
        self.down = nn.Linear(inner, dim)""",
    "mlp": "        return self.down(F.{activation}(self.up(x)))",
    "block_init": "",
    "block": """        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))""",
    "stack": """        for block in self.blocks:
            x = block(x)""",
    "result": "self.norm(x) @ self.table.weight.T",
}
FEATURES: dict[str, dict[str, str]] = {
    "rope": {
        "imports@attention": "from parts import rotated",
        "arguments": ", theta",
        "values": ", theta=10_000.0",
        "init": "        self.theta = theta",
        "heads": "        query, key = rotated(query, self.theta), rotated(key, self.theta)",
    },
    "alibi": {
        "imports@attention": "from parts import distances",
        "scores": "        scores = scores - distances(scores)",
    },
    "qk_norm": {
        "init": """        self.query_norm = nn.RMSNorm(dim // heads)
        self.key_norm = nn.RMSNorm(dim // heads)""",
        "heads": "        query, key = self.query_norm(query), self.key_norm(key)",
    },
    "softcap": {
        "arguments": ", cap",
        "values": ", cap=50.0",
        "init": "        self.cap = cap",
        "scores": "        scores = self.cap * torch.tanh(scores / self.cap)",
    },
    "window": {
        "arguments": ", window",
        "values": ", window=8",
        "init": "        self.window = window",
        "mask": "        mask = mask.triu(1 - self.window)",
    },
    "swiglu": {
        "mlp_init": """        self.gate = nn.Linear(dim, inner)
        self.up = nn.Linear(dim, inner)
        self.down = nn.Linear(inner, dim)""",
        "mlp": "        return self.down(F.silu(self.gate(x)) * self.up(x))",
    },
    "moe": {
        "imports@model": "from parts import Mixture",
        "mlp_arguments": ", experts, top_k",
        "mlp_values": ", experts=4, top_k=2",
        "mlp_init": "        self.mixture = Mixture(dim, inner, experts, top_k)",
        "mlp": "        return self.mixture(x)",
        "block": """        x = x + self.attention(self.attention_norm(x))
        mixed, balance = self.mlp(self.mlp_norm(x))
        return x + mixed, balance""",
        "stack": """        balance = 0.0
        for block in self.blocks:
            x, more = block(x)
            balance = balance + more""",
        "result": "self.norm(x) @ self.table.weight.T + balance",
    },
    "parallel_block": {
        "block": """        attended = self.attention(self.attention_norm(x))
        return x + attended + self.mlp(self.mlp_norm(x))""",
    },
    "sandwich_norm": {
        "block_init": """        self.attention_out_norm = nn.RMSNorm(dim)
        self.mlp_out_norm = nn.RMSNorm(dim)""",
        "block": """        x = x + self.attention_out_norm(self.attention(self.attention_norm(x)))
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x)))""",
    },
    "lora": {
        "imports@attention": "from parts import LoRA",
        "imports@model": "from parts import LoRA",
        "linear": "LoRA",
        "out": "LoRA",
        "mlp_init": """        self.up = LoRA(dim, inner)
        self.down = LoRA(inner, dim)""",
    },
    "tensor": {
        "imports@attention": "from parts import Columns, Rows, processes",
        "imports@model": "from parts import Columns, Rows",
        "linear": "Columns",
        "out": "Rows",
        "init": "        self.heads = heads // processes()",
        "mlp_init": """        self.up = Columns(dim, inner)
        self.down = Rows(inner, dim)""",
    },
    "context": {
        "imports@attention": "from parts import gathered, own",
        "imports@model": "from parts import own",
        "heads": "        key, value = gathered(key), gathered(value)",
        "mask": """        mask = torch.ones_like(scores[0, 0], dtype=torch.bool)
        mask = own(torch.ones_like(mask[:1]).expand(mask.shape[1], -1).tril(), dim=0)""",
        "stack": """        x = own(x, dim=1)
        for block in self.blocks:
            x = block(x)""",
    },
}


def code_base(*, models: int, attentions: int, feature: str | None = None) -> Tree:
    """The files of a code base with so many models and attentions, and perhaps a feature in all."""
    tree = {f"attentions/a{i}.py": _attention(i, feature) for i in range(attentions)}
    return tree | {f"models/m{i}.py": _model(i, i % attentions, feature) for i in range(models)}


def _attention(index: int, feature: str | None) -> str:
    own = {
        "index": index,
        "scale": f"{0.2 + index / 50:.2f}",
        "bias": index % 2 == 0,
        "activation": "",
    }
    return _written(_ATTENTION, own, feature, "attention")


def _model(index: int, attention: int, feature: str | None) -> str:
    own = {
        "index": index,
        "attention": attention,
        "norm": ("LayerNorm", "RMSNorm")[index % 2],
        "activation": ("gelu", "silu", "relu")[index % 3],
        "ratio": 2 + index % 3,
        "layers": 1 + index % 3,
    }
    return _written(_MODEL, own, feature, "model")


def _written(template: str, own: dict[str, object], feature: str | None, kind: str) -> str:
    """The template with what stands at its places; an empty place is no line."""
    directives = FEATURES[feature] if feature else {}
    places = {**_PLAIN, **directives, "imports": directives.get(f"imports@{kind}", "")}
    places = {key: text.format_map(own) for key, text in places.items()}
    lines = []
    for line in template.splitlines():
        text = line.format_map({**places, **own})
        if text or not line.startswith("{"):
            lines.append(text)
    return "\n".join(lines) + "\n"
