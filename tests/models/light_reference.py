"""Lightweight and dynamic convolution models in PyTorch, by fairseq's names, and those names in our records."""

import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.models.light_decoder import LightDecoderConfig
from convs2s_jax.models.light_encoder import LightEncoderConfig
from convs2s_jax.models.light_records import (
    Attention,
    Convolution,
    DecoderBlock,
    Dynamic,
    EncoderBlock,
    FeedForward,
    LightDecoderParams,
    LightEncoderParams,
    Lightweight,
)
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.multihead import Multihead

RESERVED = 2
"""Rows of our position tables beside fairseq's count of positions."""


def config(args) -> ModelConfig:
    def side(name):
        return {
            "layers": tuple(args[f"{name}_kernel_size_list"]),
            "convolution": args[f"{name}_conv_type"],
            "conv_dim": args[f"{name}_conv_dim"],
            "heads": args[f"{name}_attention_heads"],
            "glu": args[f"{name}_glu"],
            "ffn_dim": args[f"{name}_ffn_embed_dim"],
            "norm_before": args[f"{name}_normalize_before"],
            "positions": "learned" if args[f"{name}_learned_pos"] else "sinusoidal",
        }

    sizes = {name: RESERVED + args[f"max_{name}_positions"] for name in ("source", "target")}
    return ModelConfig(
        embedding_dim=args["encoder_embed_dim"],
        dropout=0.0,
        encoder=LightEncoderConfig(max_positions=sizes["source"], **side("encoder")),
        decoder=LightDecoderConfig(
            max_positions=sizes["target"], tied_output=args["share_decoder_input_output_embed"], **side("decoder")
        ),
    )


def params(tensors, cfg: ModelConfig) -> Params:
    """Our parameters of a state dictionary."""

    def norm(name):
        return LayerNorm(scale=jnp.asarray(tensors[f"{name}.weight"]), bias=jnp.asarray(tensors[f"{name}.bias"]))

    def affine(name):
        return Affine(w=jnp.asarray(tensors[f"{name}.weight"].T), b=jnp.asarray(tensors[f"{name}.bias"]))

    def kernel(name, side):
        if side.convolution == "lightweight":
            return Lightweight(scores=jnp.asarray(tensors[f"{name}.weight"][:, 0].T))
        predictor = tensors[f"{name}.weight_linear.weight"]
        return Dynamic(maker=jnp.asarray(predictor.reshape(side.heads, -1, predictor.shape[1]).transpose(2, 1, 0)))

    def convolution(name, side, norm_name):
        return Convolution(
            map_in=affine(f"{name}.linear1"),
            kernel=kernel(f"{name}.conv", side),
            map_out=affine(f"{name}.linear2"),
            norm=norm(norm_name),
        )

    def feed_forward(name, norm_name):
        return FeedForward(map_in=affine(f"{name}.fc1"), map_out=affine(f"{name}.fc2"), norm=norm(norm_name))

    def attention(name):
        names = {"query": "q", "key": "k", "value": "v", "out": "out"}
        maps = {ours: affine(f"{name}.encoder_attn.{theirs}_proj") for ours, theirs in names.items()}
        return Attention(heads=Multihead(**maps), norm=norm(f"{name}.encoder_attn_layer_norm"))

    def common(name, side):
        positions = tensors.get(f"{name}.embed_positions.weight")
        return {
            "embedding": Embedding(
                table=jnp.asarray(tensors[f"{name}.embed_tokens.weight"]),
                positions=None if positions is None else jnp.asarray(positions),
            ),
            "norm": norm(f"{name}.layer_norm") if side.norm_before else None,
        }

    encoder = [
        EncoderBlock(
            convolution=convolution(name, cfg.encoder, f"{name}.layer_norm1"),
            feed_forward=feed_forward(name, f"{name}.layer_norm2"),
        )
        for name in (f"encoder.layers.{i}" for i in range(len(cfg.encoder.layers)))
    ]
    decoder = [
        DecoderBlock(
            convolution=convolution(name, cfg.decoder, f"{name}.conv_layer_norm"),
            attention=attention(name),
            feed_forward=feed_forward(name, f"{name}.final_layer_norm"),
        )
        for name in (f"decoder.layers.{i}" for i in range(len(cfg.decoder.layers)))
    ]
    output = None if cfg.decoder.tied_output else jnp.asarray(tensors["decoder.output_projection.weight"].T)
    return Params(
        encoder=LightEncoderParams(blocks=tuple(encoder), **common("encoder", cfg.encoder)),
        decoder=LightDecoderParams(blocks=tuple(decoder), output_kernel=output, **common("decoder", cfg.decoder)),
    )


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
