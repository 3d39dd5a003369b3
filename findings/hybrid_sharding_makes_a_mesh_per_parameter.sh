#!/usr/bin/env bash
# torch 2.13.0: `fully_shard` with a mesh of two dimensions (hybrid sharding) makes one more DeviceMesh
# for every parameter, each as large as the number of processes; with a mesh of one dimension it makes
# none. For 1,000 parameters and 16,384 processes that takes more than ten times the memory of the host,
# before any weight has any.
#
# Seen on Linux, Python 3.11 (meshes, and MB that the peak memory of the process grew by):
#     one dimension: 0 meshes, 34 MB
#     two dimensions: 1000 meshes, 618 MB
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import gc
import resource

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

SIZE, SHARDS, PARAMETERS = 16_384, 64, 1000


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def num_meshes() -> int:
    gc.collect()
    return sum(isinstance(one, DeviceMesh) for one in gc.get_objects())


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SIZE)
names = ("copies", "shards")
mesh = init_device_mesh("cpu", (SIZE // SHARDS, SHARDS), mesh_dim_names=names)
grown = []
for title, chosen in (("one dimension", mesh["shards"]), ("two dimensions", mesh)):
    with torch.device("meta"):
        layers = (torch.nn.Linear(64, 64, bias=False) for _ in range(PARAMETERS))
        model = torch.nn.Sequential(*layers)
    meshes, memory = num_meshes(), peak()
    fully_shard(model, mesh=chosen)
    grown.append((num_meshes() - meshes, peak() - memory))
    print(f"{title}: {grown[-1][0]} meshes, {grown[-1][1]:.0f} MB")
(meshes, memory), (more_meshes, more_memory) = grown
assert (meshes, more_meshes) == (0, PARAMETERS)
assert more_memory > 10 * memory
PYTHON
"$folder/venv/bin/python" "$folder/run.py" 2> /dev/null
