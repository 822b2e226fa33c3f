"""Reproduce a wrong gradient of a sharded convolution:  python benchmarks/upstream/conv_gradient.py

Wrong in jax 0.10.2, correct in jax 0.12.0.1. For a bug report to JAX and XLA; it only needs jax. On a mesh (data, fsdp,
tensor) of 2 x 2 x 2 CPU devices, the rows of a batch are sharded over data and fsdp, and the kernel of a convolution
over fsdp along its inputs and over tensor along its outputs. The output is correct. The gradient with respect to the
input of two such convolutions in a row is not, because the partitioner exchanges shards of the cotangent and does not
restore their order. The exit status is 1 if an error is found.
"""

import os
import sys

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

B, T, C, K = 8, 7, 32, 3


def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    """[B, T, C] and [K, C, D] to [B, T, D]."""
    return jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    """A sum of squares after some convolutions."""
    for w in ws:
        x = jnp.tanh(convolution(x, w))
    return jnp.sum(x**2)


def errors() -> dict[str, float]:
    """The relative error of the loss and of each kernel's gradient on the mesh, compared with one device."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, T, C)).astype("f")
    ws = [rng.normal(size=(K, C, C)).astype("f") / np.sqrt(K * C).astype("f") for _ in range(2)]
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    rows, kernel = NamedSharding(mesh, P(("data", "fsdp"))), NamedSharding(mesh, P(None, "fsdp", "tensor"))
    function = jax.value_and_grad(loss)
    right = jax.device_get(jax.jit(function)(ws, x))
    found = jax.device_get(jax.jit(function)(jax.device_put(ws, kernel), jax.device_put(x, rows)))
    result = {"loss": abs(float(found[0] / right[0]) - 1.0)}
    for i, (a, b) in enumerate(zip(found[1], right[1], strict=True)):
        result[f"gradient of kernel {i}"] = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    return result


if __name__ == "__main__":
    print(f"jax {jax.__version__}")
    wrong = False
    for name, error in errors().items():
        print(f"{name}: relative error {error:.1e}")
        wrong |= error > 1e-3
    sys.exit(int(wrong))
