"""Load the model that a server's options specify."""

from dataclasses import replace

from convs2s_jax.core import local_copies
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.serving.engine import Engine
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.translation import fit, shortlists, translator
from convs2s_jax.translation.jobs.options import overridden


def load(options: ServeOptions, *, tell: Tell) -> Engine:
    """Load the model that the options specify.

    Raises:
      UserError: there is no such model, it does not translate, or the options do not fit it.
    """
    model = translator.load(
        options.workdir, steps=options.checkpoint, dtype=options.dtype, tell=tell, given_as="--workdir"
    )
    check(
        model.reads_source,
        f"--workdir={options.workdir[0]} is a language model and reads no source; a server needs a translation model",
    )
    search = overridden(model.cfg.search, options.search, attends=model.attends)
    check(
        not search.sampling,
        "search.sampling is True in this run, but a server answers the same request with the same translations; use "
        "--nosampling",
    )
    check(
        search.lm_weight == 0,
        f"--lm_weight is {search.lm_weight}, but a server has no language model; use --lm_weight=0, or "
        "convs2s decode --lm",
    )
    check(
        search.diverse_groups == 1 or "constraints" not in options.allow,
        "--allow=constraints cannot be combined with diverse_groups, since only plain beam search enforces phrases; "
        "remove one",
    )
    check(
        search.diverse_groups == 1 or "sampling" not in options.allow,
        "--allow=sampling cannot be combined with diverse_groups, since samples are drawn independently; remove one",
    )
    sizes = options.beam_sizes or (search.beam_size,)
    searches = [overridden(search, {"beam_size": size}) for size in sizes]
    for one in searches:
        fit.check_memory(model, one, options.batch_size)
    if options.shortlist:
        with local_copies.incoming("--shortlist", options.shortlist) as path:
            model = replace(model, shortlist=shortlists.load(path, model.vocabularies))
    return Engine(
        translator=translator.precomputed(model, int8=options.int8),
        search=searches[0],
        beam_sizes=tuple(dict.fromkeys(sizes)),
        batch_size=options.batch_size,
        max_tokens=min(options.max_tokens, model.max_source),
        allow=options.allow,
    )
