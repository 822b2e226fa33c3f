"""The supported families of fairseq architectures."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.interop.fairseq import arguments, light_arguments, light_parameters, parameters
from convs2s_jax.interop.fairseq.values import Rule
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params


class Family(NamedTuple):
    """Architectures with the same set of arguments.

    Attributes:
      kind: our kind of encoder and decoder.
      presets: arguments by `--arch`.
      rules: rules for the arguments.
      config: converts fairseq's arguments to a config.
      args: converts a config to fairseq's arguments.
      params: converts (config, fairseq's state dict) to the trained form of the parameters.
      state_dict: converts (config, parameters) to fairseq's whole state dict.
      momentum_obstacle: the reason that the momentum of a checkpoint cannot be imported, or "".
      carries_momentum: whether the momentum of fairseq's NAG is imported and exported.
      unread: names of tensors that fairseq stores but does not use.
      others: prefixes of architecture names that are not encoder-decoders.
    """

    kind: str
    presets: Mapping[str, Any]
    rules: Mapping[str, Rule]
    config: Callable[[Mapping[str, Any]], ModelConfig]
    args: Callable[[ModelConfig], dict[str, Any]]
    params: Callable[[ModelConfig, Mapping[str, Any]], Params]
    state_dict: Callable[[ModelConfig, Params], dict[str, np.ndarray]]
    momentum_obstacle: Callable[[Mapping[str, Any]], str]
    carries_momentum: bool
    unread: re.Pattern[str]
    others: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "fconv": Family(
        kind="conv",
        presets=arguments.PRESETS,
        rules=arguments.RULES,
        config=arguments.config_from_args,
        args=arguments.args_from_config,
        params=parameters.params_from_state_dict,
        state_dict=parameters.whole_state_dict,
        momentum_obstacle=parameters.momentum_obstacle,
        carries_momentum=True,
        unread=re.compile(r"(?!)"),
        others=("fconv_lm", "fconv_self_att"),
    ),
    "lightconv": Family(
        kind="light",
        presets=light_arguments.PRESETS,
        rules=light_arguments.RULES,
        config=light_arguments.config_from_args,
        args=light_arguments.args_from_config,
        params=light_parameters.params_from_state_dict,
        state_dict=light_parameters.whole_state_dict,
        momentum_obstacle=lambda _: "only the momentum of fconv models is carried over",
        carries_momentum=False,
        unread=light_parameters.UNREAD,
        others=("lightconv_lm",),
    ),
}


def family_of(args: Mapping[str, Any]) -> Family:
    """The family of a checkpoint, by its `arch`; fconv if that is missing.

    Raises:
      UserError: an unsupported architecture.
    """
    arch = args.get("arch", "fconv")
    for name, family in FAMILIES.items():
        known = isinstance(arch, str) and (arch == name or arch.startswith(f"{name}_"))
        if known and not arch.startswith(family.others):
            return family
    presets = ", ".join(preset for family in FAMILIES.values() for preset in family.presets)
    raise UserError(
        f"arch is {shown(arch)}; only fairseq's {' and '.join(FAMILIES)} models can be read, such as {presets}"
    )


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments.

    Raises:
      UserError: an unsupported architecture, or arguments that none of our models support.
    """
    return family_of(args).config(args)


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Parameters in their trained form, from fairseq's state dict.

    Args:
      cfg: the model (`config_from_args`).
      tensors: arrays by fairseq's names.

    Raises:
      UserError: a model without a fairseq equivalent; or missing, surplus or misshapen tensors, by name.
    """
    return family_of_model(cfg).params(cfg, tensors)


def family_of_model(cfg: ModelConfig) -> Family:
    """The family that matches the kinds of encoder and decoder.

    Raises:
      UserError: a model without a fairseq equivalent.
    """
    for family in FAMILIES.values():
        if cfg.encoder.kind == cfg.decoder.kind == family.kind:
            return family
    raise UserError(
        f"the model's encoder is of kind '{cfg.encoder.kind}' and its decoder of kind '{cfg.decoder.kind}'; no fairseq "
        "checkpoint has these parameters"
    )
