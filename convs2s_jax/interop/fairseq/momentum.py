"""Convert between fairseq's momentum buffers and the trace of our Nesterov optimiser.

fairseq stores b = -lr u, where lr is the rate of its last update, and rescales b when the rate changes. We store u.
"""

import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq.checkpoint import Momentum
from convs2s_jax.interop.fairseq.parameters import params_from_state_dict, state_dict
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Tree

_LISTED = 5


def trace(cfg: ModelConfig, params: Params, momentum: Momentum, where: str) -> Tree:
    """u = -b / lr for each parameter.

    Args:
      cfg: the model.
      params: its parameters, with kernels as direction and length.
      momentum: buffers in fairseq's order of parameters.
      where: file name, for error messages.

    Raises:
      UserError: the buffers do not match the parameters.
    """
    expected = state_dict(params)
    shapes = [value.shape for value in expected.values()]
    found = [buffer.shape for buffer in momentum.buffers]
    if shapes != found:
        if len(shapes) != len(found):
            odd = f"{len(found)} buffers for {len(shapes)} parameters"
        else:
            pairs = [part for part in zip(expected, shapes, found, strict=True) if part[1] != part[2]]
            odd = "; ".join(f"{name} has shape {there}, expected {here}" for name, here, there in pairs[:_LISTED])
            odd += f"; and {len(pairs) - _LISTED} more" if len(pairs) > _LISTED else ""
        raise UserError(
            f"{where}: its momentum buffers do not match its parameters ({odd}), as after training in half precision; "
            "use --nomomentum to start from zero momentum"
        )
    if not all(np.all(np.isfinite(buffer)) for buffer in momentum.buffers):
        raise UserError(f"{where}: a momentum buffer is not finite; use --nomomentum to start from zero momentum")
    lr = np.float32(momentum.rate)
    with np.errstate(over="ignore"):
        values = {name: -np.asarray(b, np.float32) / lr for name, b in zip(expected, momentum.buffers, strict=True)}
    for name, value in values.items():
        if not np.all(np.isfinite(value)):
            raise UserError(
                f"{where}: the momentum of {name} divided by its learning rate, {momentum.rate:g}, is not finite; use "
                "--nomomentum to start from zero momentum"
            )
    return params_from_state_dict(cfg, values | {"decoder.version": np.array([2.0])})


def buffers(trace: Tree) -> Momentum:
    """b = -lr u with lr = 1, which restores u bit for bit; the inverse of `trace`. fairseq rescales b as usual."""
    return Momentum([-value for value in state_dict(trace).values()], rate=1.0)
