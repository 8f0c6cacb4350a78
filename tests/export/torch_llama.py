#!/usr/bin/env python3
"""The LLaMA of a Hugging Face folder in plain PyTorch, in float64.

    torch_llama.py FOLDER IDS OUT      IDS: a file of JSON, [[id, ...], ...]
    torch_llama.py --check             exits 0 when torch can be imported

OUT gets the logits of every position of every sequence, one after the other: raw little-endian float64. A folder whose
tensors are not exactly LlamaForCausalLM's, by name and shape, is refused. Written from the format's definition,
safetensors included; it uses nothing of thinpipe's and nothing of transformers'.
"""
import json
import math
import os
import struct
import sys

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(data[8 + length + begin:8 + length + end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.to(torch.float64).reshape(entry["shape"])
    return tensors


def read_folder(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return config, read_safetensors(os.path.join(folder, "model.safetensors"))
    with open(index) as file:
        weight_map = json.load(file)["weight_map"]
    weights = {}
    for name in sorted(set(weight_map.values())):
        shard = read_safetensors(os.path.join(folder, name))
        weights.update({key: value for key, value in shard.items() if weight_map[key] == name})
    assert set(weights) == set(weight_map)
    return config, weights


def shapes(config):
    """Every tensor of LlamaForCausalLM and its shape, matrices (out, in)."""
    d, vocab, mlp = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    kv = d // config["num_attention_heads"] * config.get("num_key_value_heads", config["num_attention_heads"])
    expected = {"model.embed_tokens.weight": (vocab, d), "model.norm.weight": (d,), "lm_head.weight": (vocab, d)}
    for block in range(config["num_hidden_layers"]):
        expected |= {
            f"model.layers.{block}.input_layernorm.weight": (d,),
            f"model.layers.{block}.self_attn.q_proj.weight": (d, d),
            f"model.layers.{block}.self_attn.k_proj.weight": (kv, d),
            f"model.layers.{block}.self_attn.v_proj.weight": (kv, d),
            f"model.layers.{block}.self_attn.o_proj.weight": (d, d),
            f"model.layers.{block}.post_attention_layernorm.weight": (d,),
            f"model.layers.{block}.mlp.gate_proj.weight": (mlp, d),
            f"model.layers.{block}.mlp.up_proj.weight": (mlp, d),
            f"model.layers.{block}.mlp.down_proj.weight": (d, mlp),
        }
    return expected


def check_shapes(config, weights):
    expected, found = shapes(config), {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        assert expected.get(name) == found.get(name), f"{name}: {found.get(name)}, needs {expected.get(name)}"


def norm(x, gains, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gains


def rotate(x, base):
    """x: (heads, T, h). The first half of a head turns against the second."""
    h = x.shape[-1]
    frequencies = base ** (-torch.arange(0, h, 2, dtype=torch.float64) / h)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :h // 2], x[..., h // 2:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(x, w, config):
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    h = config["hidden_size"] // heads
    split = lambda y, n: y.reshape(len(x), n, h).transpose(0, 1)  # (n, T, h)
    q = rotate(split(x @ w("self_attn.q_proj").T, heads), config["rope_theta"])
    k = rotate(split(x @ w("self_attn.k_proj").T, kv_heads), config["rope_theta"])
    v = split(x @ w("self_attn.v_proj").T, kv_heads)
    k, v = (y.repeat_interleave(heads // kv_heads, dim=0) for y in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(h)
    later = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), diagonal=1)
    mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).reshape(len(x), heads * h) @ w("self_attn.o_proj").T


def logits(config, weights, ids):
    eps = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    for block in range(config["num_hidden_layers"]):
        w = lambda name: weights[f"model.layers.{block}.{name}.weight"]
        x = x + attention(norm(x, w("input_layernorm"), eps), w, config)
        y = norm(x, w("post_attention_layernorm"), eps)
        x = x + (torch.nn.functional.silu(y @ w("mlp.gate_proj").T) * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    head = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, weights["model.norm.weight"], eps) @ head.T


def main():
    if sys.argv[1:] == ["--check"]:
        return
    folder, ids_path, out_path = sys.argv[1:]
    config, weights = read_folder(folder)
    assert config["architectures"] == ["LlamaForCausalLM"] and config["hidden_act"] == "silu"
    check_shapes(config, weights)
    with open(ids_path) as file:
        sequences = json.load(file)
    with open(out_path, "wb") as out:
        for ids in sequences:
            out.write(bytes(logits(config, weights, ids).contiguous().numpy().astype("<f8").tobytes()))


with torch.no_grad():
    main()
