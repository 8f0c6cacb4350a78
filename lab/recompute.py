#!/usr/bin/python3
"""Computes figures of `thinpipe lab collapse --dump` and `lab depth --dump` a second time, in PyTorch.

Usage: recompute.py FOLDER     prints one JSON object: stable ranks by tensor, and the error of top-k's gradient.
"""
import json
import math
import pathlib
import struct
import sys

import torch

TYPES = {"F32": torch.float32, "F64": torch.float64}


def tensors_of(path):
    """The tensors of a safetensors file: 8 bytes of length, a JSON header, the numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        numbers = torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[entry["dtype"]])
        found[name] = numbers.reshape(entry["shape"]).double()
    return found


def stable_rank(matrix):
    values = torch.linalg.svdvals(matrix)
    return ((values**2).sum() / values.max() ** 2).item()


def gradient_error(tensors):
    exact = {name[len("exact.") :]: t for name, t in tensors.items() if name.startswith("exact.")}
    error = sum(((tensors["topk." + name] - t) ** 2).sum().item() for name, t in exact.items())
    return math.sqrt(error / sum((t**2).sum().item() for t in exact.values()))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: recompute.py FOLDER")
    folder, result = pathlib.Path(sys.argv[1]), {}
    if (folder / "collapse.safetensors").exists():
        found = tensors_of(folder / "collapse.safetensors")
        result["stable_ranks"] = {name: stable_rank(tensor) for name, tensor in found.items()}
    if (folder / "depth.safetensors").exists():
        result["topk_gradient_error"] = gradient_error(tensors_of(folder / "depth.safetensors"))
    if not result:
        sys.exit(f"{folder}: needs collapse.safetensors or depth.safetensors from `thinpipe lab ... --dump`")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
