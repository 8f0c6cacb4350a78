#!/usr/bin/env python3
"""Writes dense_*.safetensors: the same dense model in plain PyTorch (autograd, torch.optim.AdamW), trained 10 steps.

Run with Debian's python3-torch:  /usr/bin/python3 tests/pipeline/parity/generate.py
Each file holds the initial weights (float32, exact in float64), the tokens of every step, and the ten losses computed in
float64 ("losses") and in float32 ("losses_f32"). tests/pipeline/parity_test.cc trains ours from them and compares.
Written from the model's definition, sharing nothing with the C++: weights are (in, out), names as in docs/model.md.
"""
import json
import math
import os
import struct

import torch
import torch.nn.functional as F

STEPS, B, T, V = 10, 3, 16, 61
CASES = {
    "rope_gqa": dict(d=32, blocks=2, heads=4, kv_heads=2, mlp=40, rope=True, qk_norm=False),
    "sinusoidal_qknorm": dict(d=32, blocks=2, heads=4, kv_heads=4, mlp=40, rope=False, qk_norm=True),
    "rope_qknorm_mqa": dict(d=32, blocks=2, heads=4, kv_heads=1, mlp=40, rope=True, qk_norm=True),
}
LR, BETAS, EPS, DECAY, CLIP, NORM_EPS, BASE = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 1e-5, 10000.0


def initial_weights(c, gen):
    hd = c["d"] // c["heads"]
    def normal(*shape, std=0.05):
        return torch.randn(*shape, generator=gen) * std
    def gain(n):
        return 1 + 0.1 * torch.randn(n, generator=gen)
    w = {"embedding": normal(V, c["d"], std=0.5)}
    for i in range(c["blocks"]):
        p = f"blocks.{i}."
        w[p + "attn_norm"] = gain(c["d"])
        w[p + "wqkv"] = normal(c["d"], (c["heads"] + 2 * c["kv_heads"]) * hd, std=0.2)
        if c["qk_norm"]:
            w[p + "q_norm"] = gain(hd)
            w[p + "k_norm"] = gain(hd)
        w[p + "wp1"] = normal(c["heads"] * hd, c["d"], std=0.2)
        w[p + "mlp_norm"] = gain(c["d"])
        w[p + "wgu"] = normal(c["d"], 2 * c["mlp"], std=0.2)
        w[p + "wp2"] = normal(c["mlp"], c["d"], std=0.2)
    w["final_norm"] = gain(c["d"])
    w["head"] = normal(c["d"], V, std=0.2)
    return w


def norm(x, g):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + NORM_EPS) * g


def angles(n, width, dtype):
    freq = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    a = torch.arange(n, dtype=torch.float64)[:, None] * freq[None]
    return a.cos().to(dtype), a.sin().to(dtype)


def rotate(x):  # (B, heads, T, hd), pairs (i, i + hd/2)
    cos, sin = angles(x.shape[2], x.shape[3], x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def loss_of(w, c, tokens):
    d, heads, kv = c["d"], c["heads"], c["kv_heads"]
    hd = d // heads
    x = w["embedding"][tokens[:, :-1]]
    if not c["rope"]:
        cos, sin = angles(T, d, x.dtype)
        x = x + torch.cat([sin, cos], -1)
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for i in range(c["blocks"]):
        p = f"blocks.{i}."
        qkv = norm(x, w[p + "attn_norm"]) @ w[p + "wqkv"]
        q, k, v = qkv.split([heads * hd, kv * hd, kv * hd], -1)
        q, k, v = (t.view(B, T, -1, hd).transpose(1, 2) for t in (q, k, v))
        if c["qk_norm"]:
            q, k = norm(q, w[p + "q_norm"]), norm(k, w[p + "k_norm"])
        if c["rope"]:
            q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        s = (q @ k.transpose(-1, -2) / math.sqrt(hd)).masked_fill(~mask, float("-inf"))
        o = (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, heads * hd)
        x = x + o @ w[p + "wp1"]
        gate, up = (norm(x, w[p + "mlp_norm"]) @ w[p + "wgu"]).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ w[p + "wp2"]
    logits = norm(x, w["final_norm"]) @ w["head"]
    return F.cross_entropy(logits.reshape(-1, V), tokens[:, 1:].reshape(-1))


def train(initial, c, tokens, dtype):
    w = {name: t.to(dtype).clone().requires_grad_() for name, t in initial.items()}
    gains = [t for n, t in w.items() if "norm" in n]
    rest = [t for n, t in w.items() if "norm" not in n]
    opt = torch.optim.AdamW([dict(params=rest, weight_decay=DECAY), dict(params=gains, weight_decay=0.0)],
                            lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        opt.zero_grad()
        loss = loss_of(w, c, tokens[step])
        loss.backward()
        squares = sum((t.grad.double() ** 2).sum() for t in w.values())
        factor = min(1.0, CLIP / math.sqrt(float(squares)))
        for t in w.values():
            t.grad.mul_(factor)
        opt.step()
        losses.append(float(loss))
    return torch.tensor(losses, dtype=torch.float64)


def write_safetensors(path, tensors, metadata):
    kinds = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
    header, offset, body = {"__metadata__": metadata}, 0, b""
    for name, t in tensors.items():
        raw = t.contiguous().numpy().tobytes()
        header[name] = dict(dtype=kinds[t.dtype], shape=list(t.shape), data_offsets=[offset, offset + len(raw)])
        offset += len(raw)
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def main():
    torch.set_num_threads(1)
    for name, c in CASES.items():
        gen = torch.Generator().manual_seed(20260101)
        initial = initial_weights(c, gen)
        tokens = torch.randint(0, V, (STEPS, B, T + 1), generator=gen)
        out = {"w." + n: t for n, t in initial.items()}
        out["tokens"] = tokens
        out["losses"] = train(initial, c, tokens, torch.float64)
        out["losses_f32"] = train(initial, c, tokens, torch.float32)
        config = dict(c, vocab=V, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=DECAY, clip=CLIP)
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"dense_{name}.safetensors")
        write_safetensors(path, out, {"config": json.dumps(config)})
        print(name, out["losses"].tolist())


if __name__ == "__main__":
    main()
