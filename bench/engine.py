"""The dense model of `thinpipe bench engine` in PyTorch, as a knowledgeable user would write it for a CPU.

Reads one JSON object from the command line (d, blocks, heads, mlp, vocab, length, sequences, threads, rounds) and prints
one: the least seconds of a training step (forward, backward, AdamW), PyTorch's version, and what it computed with.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F

told = json.loads(sys.argv[1])
torch.manual_seed(1)
torch.set_num_threads(told["threads"])
d, heads, length, sequences = told["d"], told["heads"], told["length"], told["sequences"]
head_dim = d // heads


def matrix(*shape):
    return torch.nn.Parameter(0.02 * torch.randn(*shape))


def gain():
    return torch.nn.Parameter(torch.ones(d))


embedding, head, final_norm = matrix(told["vocab"], d), matrix(told["vocab"], d), gain()
blocks = [
    {"attn_norm": gain(), "qkv": matrix(3 * d, d), "out": matrix(d, d), "mlp_norm": gain(),
     "gate_up": matrix(2 * told["mlp"], d), "down": matrix(d, told["mlp"])}
    for _ in range(told["blocks"])
]
parameters = [embedding, head, final_norm] + [p for block in blocks for p in block.values()]

angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim))
cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([angles.sin()] * 2, 1)
mask = torch.full((length, length), float("-inf")).triu(1)


def norm(x, g):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * g


def rotate(x):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


has_attention = hasattr(F, "scaled_dot_product_attention")  # from PyTorch 2.0 on


def attend(q, k, v):
    if has_attention:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=head_dim ** -0.5)
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view_as(q)


def loss_of(ids, targets):
    x = F.embedding(ids, embedding)
    for block in blocks:
        qkv = F.linear(norm(x, block["attn_norm"]), block["qkv"])
        q, k, v = qkv.view(sequences, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attend(rotate(q), rotate(k), v)
        x = x + F.linear(mixed.transpose(1, 2).reshape(sequences, length, d), block["out"])
        gate, up = F.linear(norm(x, block["mlp_norm"]), block["gate_up"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, block["down"])
    logits = F.linear(norm(x, final_norm), head)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


try:  # from PyTorch 2.4 on
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
except (TypeError, RuntimeError):
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
tokens = torch.randint(told["vocab"], (sequences, length + 1))
least = float("inf")
for _ in range(told["steps"]):  # the first one warms up
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss_of(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    least = min(least, time.perf_counter() - start)
used = ["scaled_dot_product_attention" if has_attention else "attention by products",
        "fused AdamW" if optimizer.defaults.get("fused") else "foreach AdamW"]
print(json.dumps({"step_s": least, "version": str(torch.__version__), "with": ", ".join(used)}))
