"""Lightweight and dynamic convolution models in PyTorch, by fairseq's names."""

import numpy as np

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.config import ModelConfig

RESERVED = 2
"""Rows of our position tables beside fairseq's count of positions."""


def positions_table(rows, dim):
    """fairseq's sinusoidal table as PyTorch computes it in float32."""
    import torch

    frequencies = torch.exp(torch.arange(dim // 2, dtype=torch.float32) * -(np.log(10000) / (dim // 2 - 1)))
    angles = torch.arange(rows, dtype=torch.float32)[:, None] * frequencies[None]
    table = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
    table[PAD] = 0.0
    return table


class Reference:
    """The model in PyTorch.

    cut: whether the decoder's dynamic kernels are cut to the length of the target before their softmax, as fairseq does
    in training but not in generation.
    """

    def __init__(self, tensors, cfg: ModelConfig, *, cut: bool):
        self.tensors, self.cfg, self.cut = tensors, cfg, cut

    def linear(self, name, x):
        import torch

        return torch.nn.functional.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name, x):
        import torch

        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def around(self, name, side, x, part):
        return x + part(self.norm(name, x)) if side.norm_before else self.norm(name, x + part(x))

    def embed(self, name, tokens):
        real = (tokens != PAD).long()
        places = real.cumsum(1) * real + PAD
        table = self.tensors[f"{name}.embed_tokens.weight"]
        dim = table.shape[1]
        positions = self.tensors.get(f"{name}.embed_positions.weight")
        if positions is None:
            positions = positions_table(tokens.shape[1] + RESERVED, dim).to(table.dtype)
        return dim**0.5 * table[tokens] + positions[places]

    def convolution(self, name, side, x, width, left, mask=None):
        import torch

        x = self.linear(f"{name}.linear1", x)
        if side.glu:
            x = torch.nn.functional.glu(x, dim=-1)
        if mask is not None:
            x = x * mask[:, :, None]
        B, T, C = x.shape
        H = side.heads
        if side.convolution == "lightweight":
            scores = self.tensors[f"{name}.conv.weight"][:, 0].expand(B, T, H, width)
        else:
            scores = (x @ self.tensors[f"{name}.conv.weight_linear.weight"].T).reshape(B, T, H, width)
        if self.cut and side.convolution == "dynamic" and left == width - 1 and width > T:
            scores, left, width = scores[..., width - T :], T - 1, T
        padded = torch.nn.functional.pad(x, (0, 0, left, width - 1 - left))
        windows = padded.unfold(1, width, 1).reshape(B, T, H, C // H, width)
        y = torch.einsum("bthrk,bthk->bthr", windows, torch.softmax(scores, -1)).reshape(B, T, C)
        return self.linear(f"{name}.linear2", y)

    def feed_forward(self, name, x):
        return self.linear(f"{name}.fc2", self.linear(f"{name}.fc1", x).relu())

    def encode(self, src):
        side, mask = self.cfg.encoder, src != PAD
        x = self.embed("encoder", src)
        for i, width in enumerate(side.layers):
            name = f"encoder.layers.{i}"

            def convolution(z, name=name, width=width):
                return self.convolution(name, side, z, width, (width - 1) // 2, mask)

            x = self.around(f"{name}.layer_norm1", side, x, convolution)
            x = self.around(f"{name}.layer_norm2", side, x, lambda z, name=name: self.feed_forward(name, z))
        return self.norm("encoder.layer_norm", x) if side.norm_before else x

    def attention(self, name, x, memory, mask):
        import torch

        def heads(z):
            return z.unflatten(-1, (self.cfg.decoder.heads, -1)).transpose(1, 2)

        q, k, v = (heads(self.linear(f"{name}.{p}_proj", z)) for p, z in (("q", x), ("k", memory), ("v", memory)))
        scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        a = torch.softmax(scores.masked_fill(~mask[:, None, None], -torch.inf), -1)
        return self.linear(f"{name}.out_proj", (a @ v).transpose(1, 2).flatten(2)), a.mean(1)

    def decode(self, memory, mask, tokens):
        side = self.cfg.decoder
        x, seen = self.embed("decoder", tokens), []
        for i, width in enumerate(side.layers):
            name = f"decoder.layers.{i}"

            def convolution(z, name=name, width=width):
                return self.convolution(name, side, z, width, width - 1)

            def attention(z, name=name):
                y, a = self.attention(f"{name}.encoder_attn", z, memory, mask)
                seen.append(a)
                return y

            x = self.around(f"{name}.conv_layer_norm", side, x, convolution)
            x = self.around(f"{name}.encoder_attn_layer_norm", side, x, attention)
            x = self.around(f"{name}.final_layer_norm", side, x, lambda z, name=name: self.feed_forward(name, z))
        if side.norm_before:
            x = self.norm("decoder.layer_norm", x)
        table = "decoder.embed_tokens.weight" if side.tied_output else "decoder.output_projection.weight"
        return x @ self.tensors[table].T, seen[-1]
