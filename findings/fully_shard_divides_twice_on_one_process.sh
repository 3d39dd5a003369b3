#!/usr/bin/env bash
# torch 2.13.0: with `set_gradient_divide_factor(f)` and `set_force_sum_reduction_for_comms(True)`,
# `fully_shard` on a mesh of one process divides gradients by f twice: they are f times too small.
#
# Seen on Linux, Python 3.11, gloo: a gradient of 1 becomes 0.25 for f = 2, and 0.0625 for f = 4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
for factor in (1.0, 2.0, 4.0):
    model = nn.Linear(2, 2, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    model.set_gradient_divide_factor(factor)
    model.set_force_sum_reduction_for_comms(True)
    model(torch.ones(1, 2)).sum().backward()
    print(factor, model.weight.grad.full_tensor().unique().tolist())
dist.destroy_process_group()
PYTHON
seen=$("$folder/venv/bin/python" "$folder/run.py")
echo "$seen"
test "$seen" = "1.0 [1.0]
2.0 [0.25]
4.0 [0.0625]"
