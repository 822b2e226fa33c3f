"""Compile the programs of an update as training does, from shapes alone, for devices that need not be attached."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.data.shapes import Shape, rounded, rows_within
from convs2s_jax.scaling import collectives, hlo, traffic
from convs2s_jax.scaling.collectives import Collective
from convs2s_jax.training import flops, sharding
from convs2s_jax.training.flops import Flops
from convs2s_jax.training.mesh import slice_numbers
from convs2s_jax.training.run import programs
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import abstract_batch, abstract_key, placed

RATE = jax.ShapeDtypeStruct((), jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one device in bytes, as the compiler plans it.

    Attributes:
      arguments: arguments of the program.
      outputs: its outputs.
      aliased: the part of both that shares memory.
      temporaries: intermediate results.
      peak: peak memory; if the compiler does not report it, arguments + outputs + temporaries - aliased.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled program and its cost.

    Attributes:
      name: "first state", "gradients", "more gradients" (of the further batches of an update) or "update".
      shape: shape of its batch; None for the first state and the optimiser's program.
      times: executions in an update; 0 for the first state.
      flops: FLOPs of all devices together, from the traced program.
      memory: memory of one device.
      memory_traffic: bytes from and to the memory of one device.
      product_traffic: the part of these from operations with products.
      collectives: collectives of one device.
      seconds: wall-clock time of compilation.
      processor_seconds: processor time of compilation.
      program: XLA's executable.
    """

    name: str
    shape: Shape | None
    times: int
    flops: Flops
    memory: Memory
    memory_traffic: int
    product_traffic: int
    collectives: tuple[Collective, ...]
    seconds: float
    processor_seconds: float
    program: Any = field(repr=False)

    @property
    def label(self) -> str:
        """Label of the program in tables: its name and the lengths of its batch."""
        return _label(self.name, self.shape)


class TooLargeError(Exception):
    """The compiler rejected a program that does not fit into the device's memory.

    The message contains the program's name and the compiler's sentence about how much memory is missing.
    """


def shape_of(cfg: Config, lengths: int | tuple[int, int], tokens: int) -> Shape:
    """Return the batch shape that training would use for these lengths.

    Args:
      cfg: the configuration.
      lengths: lengths of sources and targets. One number is for both, except for a side that is an empty line or a
        label, which keeps its own length.
      tokens: token budget of the batch.

    Raises:
      UserError: a length exceeds what the model's positions allow.
    """
    batch, labelled, one_sided = cfg.data.batch, cfg.classifies, cfg.data.one_sided
    longest_source = min(batch.max_length, cfg.model.max_source)
    longest_target = batch.max_length if labelled else min(batch.max_length, cfg.model.max_target)
    source, target = lengths if isinstance(lengths, tuple) else (lengths, lengths)
    check(
        not (isinstance(lengths, tuple) and (labelled or one_sided)),
        f"lengths {source}x{target}: this configuration has text on one side only; use a single length",
    )
    check(
        1 <= source <= longest_source and 1 <= target <= longest_target,
        f"lengths {source}x{target} are out of range: this configuration trains on sources of 1 to {longest_source} "
        f"and targets of 1 to {longest_target} tokens",
    )
    source = 1 if one_sided else source  # the end symbol of an empty line
    target = cfg.model.max_target if labelled else target
    [shape] = rounded(
        (Shape(source, target, rows_within(tokens, max(source, target))),),
        tokens=tokens,
        rows=batch.row_multiple,
        length=batch.length_multiple,
        most=(1 if one_sided else longest_source, target if labelled else longest_target),
    )
    return shape


def compile_all(cfg: Config, mesh: Mesh, shapes: Sequence[Shape], sizes: Mapping[str, int]) -> list[Compiled]:
    """Compile the program of the first state and all programs of updates on batches of these shapes.

    The optimiser's program is the last one.

    Args:
      cfg: the configuration.
      mesh: devices.
      shapes: batch shapes.
      sizes: vocabulary sizes, by side.

    Raises:
      TooLargeError: one does not fit into the devices' memory.
      UserError: they cannot be compiled before they are called.
    """
    program_key, rest = programs.program_key(cfg), sharding.replicated(mesh)
    steps = programs.compile_run(program_key, mesh)
    check(
        hasattr(steps.first, "lower"),
        f"parallel is '{cfg.parallel}', whose programs are compiled when they are called: plan with jit",
    )
    state = programs.placed_state(program_key, mesh, **sizes)
    key, rate = placed(abstract_key(), rest), placed(RATE, rest)
    found, more = list[Compiled](), cfg.data.batch.accumulate - 1
    for shape in shapes:
        batch = abstract_batch(mesh, rows=shape.rows, src=shape.src, tgt=shape.tgt)
        found.append(_compiled("gradients", shape, 1, mesh, steps.first, state.params, batch, key))
        outputs = jax.eval_shape(steps.first, state.params, batch, key)
        total = placed(outputs, found[-1].program.output_shardings)
        if more:
            found.append(_compiled("more gradients", shape, more, mesh, steps.add, total, state.params, batch, key))
    found.append(_compiled("update", None, 1, mesh, steps.finish, state, total, rate))
    first = programs.state_program(program_key, mesh, **sizes)
    return [_compiled("first state", None, 0, mesh, first, key), *found]


def _label(name: str, shape: Shape | None) -> str:
    return name if shape is None else f"{name} ({shape.src}, {shape.tgt})"


def _reason(message: str) -> str:
    """Extract the sentence of a compiler error that says how much memory is missing."""
    found = re.search(r"[^\n.]{0,300}(?:exceed|out of memory|Used)[^\n]*", message)
    return (found.group() if found else message.splitlines()[0]).strip()[:300]


def _compiled(name: str, shape: Shape | None, times: int, mesh: Mesh, function: Any, *args: Any) -> Compiled:
    wall, processor = time.perf_counter(), time.process_time()
    try:
        program = function.lower(*args).compile()
    except jax.errors.JaxRuntimeError as error:
        if any(part in str(error) for part in ("ptxas", "libdevice", "libnvvm")):
            raise UserError(
                f"XLA's GPU compiler is missing a part of CUDA ({first_line(error)}): pip install '.[plan-gpu]'"
            ) from error
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLargeError(f"{_label(name, shape)}: {_reason(str(error))}") from error
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    text = hlo.parse(program.as_text())
    memory_traffic, product_traffic = traffic.memory_bytes(text)
    slices = slice_numbers(list(mesh.devices.flat))
    return Compiled(
        name=name,
        shape=shape,
        times=times,
        flops=flops.count(function, *args),
        memory=_memory(program.memory_analysis(), planned=mesh.devices.flat[0].platform != "cpu"),
        memory_traffic=memory_traffic,
        product_traffic=product_traffic,
        collectives=collectives.of_program(
            text, mesh.shape, [slices.index(number) for number in dict.fromkeys(slices)]
        ),
        seconds=wall,
        processor_seconds=processor,
        program=program,
    )


def _memory(stats: Any, *, planned: bool) -> Memory:
    """Read the compiler's numbers. `planned` means that its peak includes temporaries, unlike XLA's on CPU."""
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    temporaries, aliased = stats.temp_size_in_bytes, stats.alias_size_in_bytes
    peak = stats.peak_memory_in_bytes if planned else 0
    return Memory(
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        peak=peak or arguments + outputs + temporaries - aliased,
    )
