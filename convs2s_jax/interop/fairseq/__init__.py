"""Import and export of fairseq checkpoints: `fconv` and `lightconv` models (docs/fairseq.md).

python -m convs2s_jax.interop.fairseq import --checkpoint=FILE.pt --dicts=DIR --workdir=DIR
python -m convs2s_jax.interop.fairseq export --workdir=DIR --output=FILE.pt
"""

from convs2s_jax.interop.fairseq.families import config_from_args, params_from_state_dict
from convs2s_jax.interop.fairseq.parameters import fairseq_name, state_dict

__all__ = ["config_from_args", "fairseq_name", "params_from_state_dict", "state_dict"]
