"""Peak rates of the machine, measured in the same run as the benchmark, and FLOP counts of a model."""

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from convs2s_jax.core.guard import guard
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import layer_channels
from convs2s_jax.models.light import LightConfig

SIDE = 2048


def positive(text: str) -> int:
    """Parse a positive integer, for `argparse`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive: use 1 or more")
    return number


def run_script(main: Callable[[], None]) -> None:
    """Run a benchmark. A user error ends in one sentence and status 2."""
    guard(main, program=Path(sys.argv[0]).name)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Format minimum, median and maximum."""
    return " / ".join(f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))


def product_rate(dtype: str = "float32") -> float:
    """Return the FLOP/s of a matrix product of size 2048 x 2048, the best of 5."""
    a = jax.random.normal(jax.random.key(0), (SIDE, SIDE)).astype(dtype)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    times = []
    for _ in range(5):
        before = time.perf_counter()
        product(a).block_until_ready()
        times.append(time.perf_counter() - before)
    return 2 * SIDE**3 / min(times)


def describe() -> str:
    """Describe the device, processor, cores and versions."""
    model = "unknown processor"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    device = jax.devices()[0]
    versions = f"Python {platform.python_version()}, jax {jax.__version__}"
    return f"{device.platform} {device.device_kind}; {os.cpu_count()} x {model}; {versions}"


def peak_memory() -> float:
    """Return the peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def encoder_flops(cfg: ModelConfig) -> float:
    """Return the FLOPs of matrix products per source token in the forward pass (ConvS2S, LightConv, DynamicConv)."""
    layers, dim = cfg.encoder.layers, cfg.embedding_dim
    if isinstance(cfg.encoder, LightConfig):  # with the keys and values for each layer of the decoder
        return 2 * (_light(cfg.encoder, dim) + len(cfg.decoder.layers) * 2 * dim * dim)
    total = dim * layers[0].channels + layers[-1].channels * dim
    return 2 * (total + _convolutions(layers))


def decoder_flops(cfg: ModelConfig, source: float, vocabulary: int) -> float:
    """Return the FLOPs of matrix products per target token in the forward pass, for `source` source tokens."""
    if isinstance(cfg.decoder, LightConfig):
        dim, count = cfg.embedding_dim, len(cfg.decoder.layers)
        return 2 * (_light(cfg.decoder, dim) + count * 2 * (dim * dim + source * dim) + dim * vocabulary)
    layers, dim, out = cfg.decoder.layers, cfg.embedding_dim, cfg.decoder.out_dim
    total = dim * layers[0].channels + layers[-1].channels * out + out * vocabulary
    for index, layer in enumerate(layers):
        if cfg.decoder.attends(index):
            total += 2 * layer.channels * dim + 2 * source * dim
    return 2 * (total + _convolutions(layers))


def _light(cfg: LightConfig, dim: int) -> int:
    """Count multiplications of maps, taps and feed-forward sublayers. A convolution counts K taps per channel."""
    C, predicted = cfg.conv_dim, cfg.heads if cfg.convolution == "dynamic" else 0
    maps = (3 if cfg.glu else 2) * dim * C + 2 * dim * cfg.ffn_dim
    return sum(maps + width * C * (1 + predicted) for width in cfg.layers)


def _convolutions(layers) -> float:
    total = 0
    for layer, (inputs, source) in zip(layers, layer_channels(layers), strict=True):
        total += layer.width * inputs * 2 * layer.channels
        if source not in (None, layer.channels):
            total += source * layer.channels
    return total
