"""Import and export of fairseq checkpoints: `fconv` and `lightconv` models (docs/fairseq.md).

The commands are `convs2s import` and `convs2s export`.
"""

from convs2s_jax.interop.fairseq.families import config_from_args, params_from_state_dict, state_dict

__all__ = ["config_from_args", "params_from_state_dict", "state_dict"]
