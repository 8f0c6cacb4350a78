# A language model that thinpipe trained with token tables for its groups of blocks (model.recipe = "fast"), for Hugging
# Face transformers. `thinpipe export --format hf` puts this file into the folder. config.json names its classes, and
#     AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
# loads them. Part of thinpipe, Apache License 2.0.
#
# The model is a LLaMA except for what its blocks read. t is a token and t' the one before it; the first token of a text
# counts as its own predecessor. Each group of blocks has a table `anchors` and perhaps a table `previous`:
#
#     r = embed_tokens[t]
#     for each block before first_dense_block, in group g:    e = anchors[g][t] + previous[g][t']
#         r = r + attention(norm(r + e))
#         r = r + mlp(norm(r + e))
#     r = r + e         e of the group of block first_dense_block, or of the last group if there is no such block
#     for each block from first_dense_block on:               the same with e = 0
#     logits = lm_head(norm(r))
#
# There is no cache of keys and values: generate() reads the whole text again for every token.
#
# In shapes, B is the number of texts, T of tokens in each, d the width of r, h that of a head.

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class ThinpipeConfig(PretrainedConfig):
    model_type = "thinpipe"

    # anchor_first_blocks: the first block of each group, ascending and none above first_dense_block.
    # previous_token_tables: whether each group has a table `previous`.
    # first_dense_block: num_hidden_layers if there is no such block.
    def __init__(
        self,
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        anchor_first_blocks=(0,),
        previous_token_tables=True,
        first_dense_block=1,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self.anchor_first_blocks = list(anchor_first_blocks)
        self.previous_token_tables = previous_token_tables
        self.first_dense_block = first_dense_block
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)


def at_least_float32(dtype):
    return torch.promote_types(dtype, torch.float32)


class ThinpipeNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x):  # (B, T, d)
        wide = x.to(at_least_float32(x.dtype))
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight


# The cosines and sines of the angles by which heads of width h rotate, (B, 1, T, h/2) each. positions: (B, T)
def rotation(positions, h, base, dtype):
    pairs = torch.arange(0, h, 2, device=positions.device).to(at_least_float32(dtype))
    angles = positions[:, None, :, None] * base ** (-pairs / h)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x, cos, sin):  # (B, heads, T, h); the two numbers of a pair are half a head apart
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class ThinpipeAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.h = d // config.num_attention_heads
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, config.num_key_value_heads * self.h, bias=False)
        self.v_proj = nn.Linear(d, config.num_key_value_heads * self.h, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    # x: (B, T, d). visible: (B, 1, T, T), whether a token (third) attends to another (last).
    def forward(self, x, cos, sin, visible):
        texts, length, d = x.shape

        def heads(y):  # (B, T, heads h) -> (B, heads, T, h)
            return y.view(texts, length, -1, self.h).transpose(1, 2)

        q = rotated(heads(self.q_proj(x)), cos, sin)
        k = rotated(heads(self.k_proj(x)), cos, sin).repeat_interleave(self.repeats, 1)
        v = heads(self.v_proj(x)).repeat_interleave(self.repeats, 1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(self.h)).masked_fill(~visible, -math.inf)
        shares = functional.softmax(scores, -1, dtype=at_least_float32(x.dtype)).to(x.dtype)
        return self.o_proj((shares @ v).transpose(1, 2).reshape(texts, length, d))


class ThinpipeMlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):  # (B, T, d)
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class ThinpipeBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = ThinpipeNorm(config)
        self.self_attn = ThinpipeAttention(config)
        self.post_attention_layernorm = ThinpipeNorm(config)
        self.mlp = ThinpipeMlp(config)

    # r: (B, T, d). e: (B, T, d), or 0. It is added to what the block reads, not to what the block returns.
    def forward(self, r, e, cos, sin, visible):
        r = r + self.self_attn(self.input_layernorm(r + e), cos, sin, visible)
        return r + self.mlp(self.post_attention_layernorm(r + e))


class ThinpipeModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

        def table():
            return nn.Embedding(config.vocab_size, config.hidden_size)

        groups = len(config.anchor_first_blocks)
        self.embed_tokens = table()
        self.anchors = nn.ModuleList(table() for _ in range(groups))
        self.previous = nn.ModuleList(table() for _ in range(groups if config.previous_token_tables else 0))
        self.layers = nn.ModuleList(ThinpipeBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = ThinpipeNorm(config)

    # ids, before: (B, T), tokens and their predecessors -> e, (B, T, d)
    def anchor(self, group, ids, before):
        e = self.anchors[group](ids)
        return e + self.previous[group](before) if self.config.previous_token_tables else e

    # ids: (B, T). mask: (B, T), 0 for padding, which lies before or after the text; or None. Returns (B, T, d).
    def forward(self, ids, mask):
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        positions = (real.cumsum(1) - 1).clamp(min=0)
        before = torch.where(positions == 0, ids, ids.roll(1, 1))
        # Padding attends to itself: a softmax needs something to attend to.
        square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
        visible = square.tril() & real[:, None, None, :] | square.tril().triu()

        config = self.config
        r = self.embed_tokens(ids)
        cos, sin = rotation(positions, config.hidden_size // config.num_attention_heads, config.rope_theta, r.dtype)
        for index, block in enumerate(self.layers):
            if index in config.anchor_first_blocks:
                e = self.anchor(config.anchor_first_blocks.index(index), ids, before)
            if index == config.first_dense_block:
                r, e = r + e, 0
            r = block(r, e, cos, sin, visible)
        if config.first_dense_block == len(self.layers):
            r = r + e
        return self.norm(r)


class ThinpipeForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = ThinpipeConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = ThinpipeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, value):
        self.model.embed_tokens = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **ignored):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    # input_ids, attention_mask, labels: (B, T); a label of -100 does not count. The loss is the mean of the labels, or
    # their sum divided by num_items_in_batch. use_cache has no effect.
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        labels=None,
        num_items_in_batch=None,
        use_cache=None,
        return_dict=None,
        **others,
    ):
        unsupported = [name for name, value in others.items() if value is not None and value is not False]
        if unsupported or input_ids is None:
            raise ValueError(f"takes input_ids, attention_mask and labels; got {', '.join(unsupported) or 'no ids'}")
        logits = self.lm_head(self.model(input_ids, attention_mask))  # (B, T, V)
        loss = None
        if labels is not None:
            rows, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            rows = rows.to(at_least_float32(rows.dtype))
            if num_items_in_batch is None:
                loss = functional.cross_entropy(rows, targets)
            else:
                loss = functional.cross_entropy(rows, targets, reduction="sum") / num_items_in_batch
        output = CausalLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output
