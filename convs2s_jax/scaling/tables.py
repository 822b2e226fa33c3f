"""Plans and checks as readable text tables."""

from collections.abc import Sequence

from convs2s_jax.core.errors import counted
from convs2s_jax.data.shapes import Shape
from convs2s_jax.scaling.check import Measured
from convs2s_jax.scaling.plan import Plan


def of_plan(plan: Plan) -> str:
    """Format a plan as text: devices, memory, work, collectives, the bound of a step, and what is unknown."""
    axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    lines = [
        f"{plan.devices} x {plan.topology.partition(':')[0]} ({plan.topology}, {counted(plan.slices, 'slice')}), "
        f"mesh {axes}, {plan.parallel}, products in {plan.dtype}",
        f"{plan.parameters:,} parameters; parameters and optimiser take {_bytes(plan.state_bytes)} on a chip",
        "batches: " + ", ".join(_batch(shape, rows) for shape, rows in zip(plan.shapes, plan.rows, strict=True)),
        "",
    ]
    if plan.refused:
        return "\n".join([*lines, f"DOES NOT FIT: {plan.refused}"])
    lines += [*_memory(plan), "", *_work(plan), "", *_collectives(plan), "", *_steps(plan), "", *_notes(plan)]
    return "\n".join(lines)


def of_check(found: Sequence[Measured], steps: int) -> str:
    """Format planned values next to measured ones."""
    shown = {"s": _seconds, "B": _bytes}
    rows = [
        [
            each.name,
            shown[each.unit](each.planned),
            shown[each.unit](each.median),
            f"+- {100 * each.spread:.1f} %" if len(each.values) > 1 else "",
            f"{100 * each.error:+.1f} %",
        ]
        for each in found
    ]
    head = ["on the attached devices", "planned", f"median of {steps}", "spread", "error of the plan"]
    return "\n".join([*table(head, rows), "spread: half the interquartile range; error: measured / planned - 1"])


def _batch(shape: Shape, rows: int) -> str:
    padding = f" with {counted(shape.rows - rows, 'row')} of padding" if rows < shape.rows else ""
    return f"{shape}{padding}"


def _memory(plan: Plan) -> list[str]:
    names = ["arguments", "temporaries", "outputs", "peak"]
    rows = [[each.label, *(_bytes(getattr(each.memory, name)) for name in names)] for each in plan.programs]
    fits = {True: "fits", False: "DOES NOT FIT", None: "the memory of the chip is unknown"}[plan.fits]
    of = f" of {_bytes(plan.chip.memory)}" if plan.chip.memory else ""
    return [
        *table(["memory of a chip", *names], rows),
        f"peak with the whole state: {_bytes(plan.resident)}{of}, {fits}",
    ]


def _work(plan: Plan) -> list[str]:
    rows = [
        [
            each.label,
            _scaled(each.flops.model / plan.devices, "FLOP"),
            _scaled(each.flops.executed / plan.devices, "FLOP"),
            _bytes(each.memory_traffic),
            f"{each.seconds:.1f} s",
            f"{each.processor_seconds:.1f} s",
        ]
        for each in plan.programs
    ]
    head = ["work of a chip", "model", "executed", "memory traffic", "compiled in", "processor"]
    return table(head, rows)


def _collectives(plan: Plan) -> list[str]:
    rows = [
        [
            f"{each.kind} over {each.axis}",
            program.label,
            f"{each.times}",
            _bytes(each.size),
            _bytes(each.wire),
            "yes" if each.asynchronous else "no",
        ]
        for program in plan.programs
        if program.times
        for each in program.collectives
    ]
    head = ["collective", "program", "times", "arrays", "sent by a chip", "asynchronous"]
    return table(head, rows) if rows else ["no collectives"]


def _steps(plan: Plan) -> list[str]:
    times = ["compute", "memory", "links", "exposed", "seconds"]
    rows = [
        [
            str(shape),
            *(_seconds(getattr(step, name)) for name in times),
            f"{step.tokens_per_second:,.0f}",
            f"{100 * step.mfu:.1f} %",
        ]
        for shape, step in zip(plan.shapes, plan.steps, strict=True)
    ]
    return table(["bound of an update", *times[:-1], "step", f"{plan.counts}/s", "MFU at most"], rows)


def _notes(plan: Plan) -> list[str]:
    notes = [f"rates of the chip: {plan.chip.source}; the bound's assumptions: docs/scaling.md"]
    unknown = sum(each.flops.unknown for each in plan.programs)
    if unknown:
        notes.append(f"loops with products that run an unknown number of times and are counted once: {unknown}")
    return notes


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the lines of a table: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in [head, *rows]]


def _bytes(size: float) -> str:
    return _scaled(size, "B")


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _scaled(value: float, unit: str) -> str:
    """Format a value with three digits and a unit prefix, such as 393 MB."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {prefix}{unit}"
    return f"{value:.0f} {unit}"
