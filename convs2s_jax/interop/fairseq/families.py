"""Families of fairseq's architectures that can be read, a line each."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import arguments, light_arguments, light_parameters, parameters
from convs2s_jax.models.encoder_decoder import ModelConfig, Params


class Family(NamedTuple):
    """Architectures that share their arguments.

    Attributes:
      kind: kind of encoder and decoder here.
      presets: arguments by `--arch`.
      config: fairseq's arguments to a config.
      args: a config to fairseq's arguments.
      params: (config, fairseq's state dict) to parameters as they are trained.
      state_dict: (config, parameters) to fairseq's whole state dict.
      afresh: why the momentum beside a state dict cannot be carried over, or "".
      carries_momentum: whether the momentum of fairseq's NAG goes in and out.
      unread: names of tensors that fairseq holds and does not use.
      others: beginnings of names that are no encoder-decoders.
    """

    kind: str
    presets: Mapping[str, Any]
    config: Callable[[Mapping[str, Any]], ModelConfig]
    args: Callable[[ModelConfig], dict[str, Any]]
    params: Callable[[ModelConfig, Mapping[str, Any]], Params]
    state_dict: Callable[[ModelConfig, Params], dict[str, np.ndarray]]
    afresh: Callable[[Mapping[str, Any]], str]
    carries_momentum: bool
    unread: re.Pattern[str]
    others: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "fconv": Family(
        kind="conv",
        presets=arguments.PRESETS,
        config=arguments.config_from_args,
        args=arguments.args_from_config,
        params=parameters.params_from_state_dict,
        state_dict=parameters.whole_state_dict,
        afresh=parameters.afresh,
        carries_momentum=True,
        unread=re.compile(r"(?!)"),
        others=("fconv_lm", "fconv_self_att"),
    ),
    "lightconv": Family(
        kind="light",
        presets=light_arguments.PRESETS,
        config=light_arguments.config_from_args,
        args=light_arguments.args_from_config,
        params=light_parameters.params_from_state_dict,
        state_dict=light_parameters.whole_state_dict,
        afresh=lambda _: "only that of fconv is carried over",
        carries_momentum=False,
        unread=light_parameters.UNREAD,
        others=("lightconv_lm",),
    ),
}


def family_of(args: Mapping[str, Any]) -> Family:
    """The family of a checkpoint by its `arch`; without one it is fconv.

    Raises:
      UserError: an architecture of another kind.
    """
    arch = str(args.get("arch", "fconv"))
    for name, family in FAMILIES.items():
        if (arch == name or arch.startswith(f"{name}_")) and not arch.startswith(family.others):
            return family
    presets = ", ".join(preset for family in FAMILIES.values() for preset in family.presets)
    raise UserError(f"arch is '{arch}': only fairseq's {' and '.join(FAMILIES)} models can be read, such as {presets}")


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model that fairseq's own arguments describe.

    Raises:
      UserError: an architecture of another kind, or arguments that make none of our models.
    """
    return family_of(args).config(args)


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Parameters as they are trained, from fairseq's state dict.

    Args:
      cfg: the model (`config_from_args`).
      tensors: arrays by fairseq's names.

    Raises:
      UserError: a model that fairseq has not; or names the missing, surplus and misshapen tensors.
    """
    return family_of_model(cfg).params(cfg, tensors)


def family_of_model(cfg: ModelConfig) -> Family:
    """The family whose kind encoder and decoder are.

    Raises:
      UserError: a model that fairseq has not.
    """
    for family in FAMILIES.values():
        if cfg.encoder.kind == cfg.decoder.kind == family.kind:
            return family
    raise UserError(
        f"the model's encoder is of kind '{cfg.encoder.kind}', its decoder of kind '{cfg.decoder.kind}': no checkpoint "
        "of fairseq has its parameters"
    )
