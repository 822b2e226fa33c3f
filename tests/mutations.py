"""Mutations: changes of one place that make the package wrong, each with a test that has to fail.

`test_mutations.py` tries them. Whoever moves a line or a test that is named here updates the entry.
"""

import shlex
from typing import NamedTuple


class Mutation(NamedTuple):
    """A change of one place.

    Attributes:
      name: topic, and what is wrong after it.
      file: in `convs2s_jax`.
      test: arguments of pytest: a file in `tests`, and perhaps an expression for `-k`.
      old: text that occurs exactly once in the file.
      new: its replacement.
    """

    name: str
    file: str
    test: list[str]
    old: str
    new: str


def read(text: str) -> list[Mutation]:
    """Four lines for each: the name; file and test; "- " and the old text; "+ " and the new one."""
    lines = text.strip().split("\n")
    found = []
    for name, where, old, new in zip(*(lines[i::4] for i in range(4)), strict=True):
        file, *test = shlex.split(where)
        found.append(Mutation(name, file, test, old.removeprefix("- "), new.removeprefix("+").removeprefix(" ")))
    return found


MUTATIONS = read(
    r"""
attention: padding is attended to
nn/attention.py  nn/test_attention.py -k padding
- jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
+ scores
attention: contexts times m, not sqrt(m)
nn/attention.py  nn/test_attention.py -k loops
- c * jnp.sqrt(m)
+ c * m
attention: queries without sqrt(.5)
nn/attention.py  nn/test_attention.py -k loops
- + g) * SQRT_HALF
+ + g)
attention: projected source without the bias of queries
models/convs2s_fast.py  models/test_convs2s_fast.py -k mapped_source
- scores_BQS + source.offset[:, None]
+ scores_BQS
attention: heads scaled by all channels
nn/multihead.py  nn/test_multihead.py -k loops
- * D**-0.5
+ * E**-0.5
attention: additive scores without tanh
nn/recurrent.py  models/test_recurrent.py -k attention_equals_a_loop
- jnp.tanh(add_broadcast(keys, query[:, None]))
+ add_broadcast(keys, query[:, None])
masks: convolutions of the encoder read padding
models/convs2s.py  models/test_encoder_laws.py -k padding_on_either_side
- dropout(zero_padding(outputs[-1], mask), rate, k)
+ dropout(outputs[-1], rate, k)
masks: padding trains a row of the table
nn/embedding.py  nn/test_embedding.py -k trains_no_row
- jax.lax.stop_gradient(e)
+ e
masks: the maximum over time includes padding
models/classifier.py  models/test_classifier.py -k padding
- jnp.where(mask[:, :, None], x, least)
+ x
scaling: residuals without sqrt(.5)
models/convs2s.py  models/test_convs2s.py -k halves
- shard_channels((x + r) * SQRT_HALF)
+ shard_channels(x + r)
scaling: values without embeddings
models/convs2s.py  interop/test_golden.py
- values=(z + e) * SQRT_HALF
+ values=z * SQRT_HALF
scaling: gradient of the encoder divided by n, not 2 n
models/convs2s.py  interop/test_golden.py
- 1.0 / (2 * count) if count
+ 1.0 / count if count
scaling: light models do not multiply embeddings by sqrt(E)
models/light.py  interop/test_light_golden.py -k outputs_and_gradients
- embedding.rows(own.table, tokens) * E**0.5
+ embedding.rows(own.table, tokens)
convolution: the history is one step old
nn/convolution.py  nn/test_convolution.py -k causal
- padded[:, x.shape[1] :]
+ padded[:, x.shape[1] - 1 : -1]
convolution: even kernels padded on the other side
nn/convolution.py  nn/test_convolution.py -k centred
- (reach // 2, reach - reach // 2)
+ (reach - reach // 2, reach // 2)
convolution: depthwise taps without dilation
nn/depthwise.py  nn/test_depthwise.py -k loops
- [:, ::dilation]
+ [:, : w.shape[-2]]
convolution: taps normalised over heads
nn/depthwise.py  nn/test_depthwise.py -k sums_to_one
- scores.astype(accumulation_dtype(scores.dtype)), axis=-2
+ scores.astype(accumulation_dtype(scores.dtype)), axis=-1
gate: halves exchanged
nn/convolution.py  nn/test_convolution.py -k glu
- a * jax.nn.sigmoid(b)
+ b * jax.nn.sigmoid(a)
cells: GRU with its update gate reversed
nn/recurrent.py  nn/test_recurrent.py -k loop
- n + z * (h - n)
+ h + z * (n - h)
cells: padding changes the state
nn/recurrent.py  nn/test_recurrent.py -k loop
- jnp.where(mask[:, None], after, before)
+ after
layer norm: divided by the variance
nn/layer_norm.py  nn/test_layer_norm.py -k each_position
- jax.lax.rsqrt(
+ jax.lax.reciprocal(
weight norm: divided by the squared norm
nn/weight_norm.py  nn/test_weight_norm.py -k direction_v
- jnp.sqrt(jnp.sum(jnp.square(v), axis=axes, keepdims=True))
+ jnp.sum(jnp.square(v), axis=axes, keepdims=True)
weight norm: averages of directions
models/conversion.py  models/test_conversion.py
- [weight_norm.merge(tree) for tree in trees]
+ list(trees)
dropout: what is kept is not enlarged
nn/dropout.py  nn/test_dropout.py -k keeps_the_mean
- x / (kept / LEVELS)
+ x
dropout: devices count their rows from 0
nn/keys.py  training/test_by_device.py -k updates_of_several
- jnp.asarray(first, jnp.uint32)
+ jnp.uint32(0)
initialisation: no factor 4 for the gate
nn/convolution.py  nn/test_convolution.py -k deviation
- (4 * keep / (width * inputs))
+ (keep / (width * inputs))
initialisation: a row for padding
nn/embedding.py  nn/test_embedding.py -k fresh_tables
- (rows, dim))).at[PAD].set(0.0)
+ (rows, dim)))
cuts: positions of a later call begin at 0
nn/embedding.py  models/test_convs2s.py -k any_cut
- (jnp.cumsum(real, axis=1) + before)
+ jnp.cumsum(real, axis=1)
cuts: a target does not begin with the end symbol
models/encoder_decoder.py  models/test_encoder_decoder.py -k shifted
- jnp.full_like(tgt[:, :1], EOS)
+ tgt[:, :1]
loss: smoothing shared among V, not V - 1
training/loss.py  models/test_encoder_decoder.py -k cross_entropy_equals_a_loop
- smoothing / (logits.shape[-1] - 1)
+ smoothing / logits.shape[-1]
loss: padding counts
training/loss.py  models/test_encoder_decoder.py -k cross_entropy_equals_a_loop
- jnp.where(real, lse - picked, 0.0)
+ lse - picked
loss: the training loss has a gradient of padding
training/softmax.py  training/test_softmax.py -k sums_and_gradients
- jnp.where(target != PAD, 1.0 / s[..., 0], 0.0)
+ (1.0 / s[..., 0])
update: a target padded on the left passes
training/batch.py  models/test_wrong_calls.py
- ((side == "tgt") | (read > 0))
+ (read > 0)
update: a target without its end symbol passes
training/batch.py  models/test_wrong_calls.py
- & (tokens != EOS)
+ & (tokens < 0)
update: kernels that are not split are trained in silence
training/step.py  models/test_wrong_calls.py
- if weight_normalisation and weight_norm.needs_split(params):
+ if not weight_normalisation and weight_norm.needs_split(params):
optimiser: Muon orthogonalises the softmax
training/optimizer.py  training/test_optimizer.py -k muon
- or path_of(path).endswith("output")
+ or path_of(path).endswith("softmax")
update: gradients are not divided by the tokens
training/step.py  training/test_golden.py
- lambda g: g / count.astype(g.dtype), grads
+ lambda g: g, grads
update: accumulation keeps the last batch
training/parallel.py  training/test_step.py -k accumulated
- jax.tree.map(jnp.add, total, first(params, batch, key))
+ first(params, batch, key)
update: a bad step changes the parameters
training/step.py  training/test_step.py -k bad_step
- jnp.where(good, b, a)
+ b
clipping: small gradients are enlarged
training/optimizer.py  training/test_optimizer.py -k 'clipping or zero'
- jnp.minimum(1.0, limit / (norm + 1e-6))
+ (limit / (norm + 1e-6))
clipping: without fairseq's millionth
training/optimizer.py  training/test_optimizer.py -k 'norm or zero'
- limit / (norm + 1e-6)).astype
+ limit / norm).astype
optimisers: momentum without Nesterov's step
training/optimizer.py  training/test_optimizer.py -k nesterov
- nesterov=True
+ nesterov=False
optimisers: eps within the root of Adam
training/optimizer.py  training/test_optimizer.py -k adam
- (jnp.sqrt(v) + cfg.eps)
+ jnp.sqrt(v + cfg.eps)
optimisers: decay of the direction
training/optimizer.py  training/test_optimizer.py -k 'decay or adamw'
- v + decay * p
+ v
schedules: the plateau waits once more
training/schedule.py  training/test_schedule.py -k plateau
- waiting < cfg.patience
+ waiting <= cfg.patience
schedules: inverse, not inverse root
training/schedule.py  training/test_schedule.py -k inverse_sqrt
- math.sqrt(cfg.warmup / step)
+ (cfg.warmup / step)
schedules: force_anneal one epoch late
training/schedule.py  training/test_schedule.py -k fixed
- (epoch + 1 - cfg.force_anneal)
+ (epoch - cfg.force_anneal)
mesh sums: the gradients of one device
training/parallel.py  training/test_by_device.py -k updates_of_several
- lax.psum(sent, "data").astype
+ sent.astype
mesh sums: pmap keeps the sums of one device
training/parallel.py  training/test_own_update.py -k value_of_the_loss
- tree.map(partial(_summed, place), grads), lax.psum(sums, "data")
+ tree.map(partial(_summed, place), grads), sums
dropout: every update has the same key
training/run/loop.py  training/run/test_resume.py -k key_of_its_own
- fold_in(root, position.step)
+ fold_in(root, window.skipped)
accumulation: a batch counts in the next update too
training/run/loop.py  training/run/test_resume.py -k halves
- pending = []
+ pending = pending[-1:]
resume: an epoch begins again
training/run/loop.py  training/run/test_resume.py -k 'halves or continues'
- position.epoch, position.batch
+ position.epoch, 0
resume: a batch is used twice
training/run/loop.py  training/run/test_resume.py -k halves
- yield pending, epoch, used
+ yield pending, epoch, used - 1
digests: another formula
training/run/checkpoints/digest.py  training/run/checkpoints/test_digest.py -k formula
- h ^= h >> np.uint32(13)
+ h ^= h >> np.uint32(14)
digests: arrays are not compared
training/run/checkpoints/restoring.py  training/run/checkpoints/test_restoring.py -k found_by_its_digest
- if expected[name] != found.get(name)]
+ if False]
digests: the position is not compared
training/run/checkpoints/position_file.py  training/run/checkpoints/test_restoring.py -k position_is_verified
- bool(digest_of_record(content) == digests["position"])
+ True
fall-back: the oldest checkpoint
training/run/checkpoints/restoring.py  training/run/checkpoints/test_restoring.py -k newest_comes_back
- sorted(finished(folder).items(), reverse=True)
+ sorted(finished(folder).items())
fall-back: a damaged checkpoint is an error
training/run/checkpoints/restoring.py  training/run/checkpoints/test_restoring.py -k the_one_before
- reason = first_line(error)
+ raise
lock: it is shared
training/run/lock.py  training/run/test_lock.py -k another_process
- fcntl.LOCK_EX | fcntl.LOCK_NB
+ fcntl.LOCK_SH | fcntl.LOCK_NB
lock: a removed file guards
training/run/lock.py  training/run/test_lock.py -k just_removed
- if not files.is_at(descriptor, path):
+ if False:
lock: who was silent renews the claim of another
training/run/lock.py  training/run/test_lock.py -k silent_ends
- return newest if ours else b""
+ return newest
lock: a claim in a store is taken in any case
core/stores.py  training/run/test_lock.py -k at_the_same_time
- return _written(address, content, if_equal=version).generation
+ return _written(address, content).generation
bucket: a checkpoint counts before its arrays are there
training/run/mirror.py  training/run/test_mirror.py -k its_last_object
- if name != MARK]
+ ]
bucket: an unlisted lock is an empty workdir
training/run/mirror.py  training/run/test_mirror.py -k empty_one
- if lock.NAME not in found:
+ if False:
bucket: a list that lacks an object is believed
training/run/mirror.py  training/run/test_mirror.py -k not_taken_for_an_empty_one
- if lock.NAME not in found:
+ if False:
beam: caches stay where they are
search/beam.py  search/test_beam.py -k procedure
- [:, None] * width + parents)
+ [:, None] * width + jnp.arange(W, dtype=jnp.int32) % width)
beam: a smaller batch keeps finished sentences
search/beam.py  search/test_options.py -k leave
- jnp.argsort(~_alive(batch), stable=True)
+ jnp.argsort(_alive(batch), stable=True)
stop: the best finished hypothesis ends the search
search/hypotheses.py  search/test_beam.py -k procedure
- <= finished.scores[:, -1]
+ <= finished.scores[:, 0]
stop: the bound ignores longer hypotheses
search/hypotheses.py  search/test_beam.py -k 'given_up or late'
- for length in (shortest, max_lengths + 1))
+ for length in (shortest, shortest))
length penalty: GNMT's without its six
search/hypotheses.py  search/test_options.py -k exhaustive
- (5 + base) / 6
+ (5 + base)
unknown words: rewarded
search/rules.py  search/test_beam.py -k procedure
- symbol == UNK, -options.unk_penalty
+ symbol == UNK, options.unk_penalty
n-grams: the newest one may be repeated
search/rules.py  search/test_options.py -k exhaustive
- starts + size <= step
+ starts + size < step
length: the minimum is one token longer
search/rules.py  search/test_options.py -k exhaustive
- step < jnp.minimum(options.min_length, max_lengths)
+ step <= jnp.minimum(options.min_length, max_lengths)
prefix: other tokens are allowed
search/rules.py  search/test_requests.py -k prefixes_and_phrases_are_kept
- jnp.where(hit, biased, -jnp.inf)
+ biased
constraints: one token too late
search/strategies.py  search/test_constraints.py -k every_hypothesis
- <= room[:, None, None] - 1
+ <= room[:, None, None]
coverage: rewarded
search/hypotheses.py  search/test_options.py -k exhaustive
- scores + options.coverage_penalty * coverage
+ scores - options.coverage_penalty * coverage
ensemble: the sum of probabilities
search/rules.py  search/test_options.py -k ensemble
-  - math.log(len(members))
+
sampling: log-probabilities over symbols that are not kept
search/strategies.py  search/test_sampling.py -k frequencies
- added - whole
+ added
sampling: the nucleus is one symbol larger
search/strategies.py  search/test_sampling.py -k sorted_probabilities
- jnp.cumsum(probabilities, axis=-1) - probabilities
+ jnp.cumsum(probabilities, axis=-1) - 2 * probabilities
selection of the best: blocks out of order
search/top.py  search/test_top.py
- jnp.sort(chosen, axis=-1)[..., None]
+ chosen[..., None]
plan: pairs are not shuffled
data/plan.py  data/test_plan.py -k own_order
- _fill(src, tgt, rng.permutation(rows), shapes)
+ _fill(src, tgt, rows, shapes)
plan: leftovers move where they do not fit
data/plan.py  data/test_plan.py -k leftovers_stay
-  if shape.fits_in(shapes[j])
+
plan: the longest pairs are skipped
data/plan.py  data/test_plan.py -k cannot_be_trained
- (src > max_source)
+ (src >= max_source)
shapes: any number of rows
data/shapes.py  data/test_shapes.py -k multiple_of_8
- rows // 8 * 8 if rows > 8 else rows
+ rows
shapes: a pair goes to the largest shape
data/shapes.py  data/test_shapes.py -k every_pair
- key=lambda i: (-shapes[i].src - shapes[i].tgt, -i)
+ key=lambda i: (shapes[i].src + shapes[i].tgt, -i)
loader: an epoch begins at its first batch
data/loader.py  data/test_loader.py -k any_start
- in plan.batches[start:])
+ in plan.batches)
loader: a cut sentence has no end symbol
data/loader.py  data/test_loader.py -k padded_and_cut
- lengths] = EOS
+ lengths - (lengths == width)] = EOS
loader: the last sentences are read from where the last window begins
data/loader.py  data/test_loader.py -k by_a_loop
- found[last] = tokens.take(begin[last, None] + column, mode="clip")
+ pass
hold-out: copies of held-out pairs are trained on
data/parallel_text.py  training/run/test_validation_split.py -k no_copy
- for copies in held for i in copies]
+ for copies in held for i in copies[:1]]
tokens on disk: damage is not noticed
data/tokens_on_disk.py  data/test_tokens_on_disk.py -k flipped
- if written != checksum(data[_HEADER.size :], data[: _UNSUMMED.size]).encode():
+ if False:
vocabulary: ties in the order of the text
data/symbols.py  data/test_vocabulary.py -k by_name
- (-item[1], item[0])
+ -item[1]
vocabulary: special symbols in a text are recognised
data/symbols.py  data/test_vocabulary.py -k dictionary_of_fairseq
- if symbol not in reserved}
+ }
BPE: the last of two equal merges counts
data/bpe_codes.py  data/test_bpe_codes.py
- reversed(list(enumerate(self.merges)))
+ enumerate(self.merges)
BPE: dropout keeps what it should drop
data/bpe_codes.py  data/test_segmentation.py -k merge
- rng.random() >= rate
+ rng.random() < rate
importer: old lengths are read as new ones
interop/fairseq/fconv.py  interop/test_golden.py
- if version(tensors) < 2 and
+ if version(tensors) < 0 and
importer: momentum with the wrong sign
interop/fairseq/families.py  interop/fairseq/test_importing.py -k updates_after_an_import
- -b.astype(np.float32) /
+ b.astype(np.float32) /
exporter: momentum with the wrong sign
interop/fairseq/exporting.py  interop/fairseq/test_exporting.py -k import_export_import
- [-value for value in
+ [value for value in
exporter: without momentum fairseq counts updates from 0
interop/fairseq/exporting.py  interop/fairseq/test_exporting.py -k keeps_the_number
- "param_groups": [group]
+ "param_groups": []
exporter: programs read sources without their end symbol
interop/programs/runtime.py  interop/test_programs.py -k as_decoding_does
- src[i, len(source)] = source, EOS
+ src[i, len(source)] = source, PAD
server: lines of other options share a batch
serving/batching.py  serving/test_batching.py -k of_its_key
- item.key == oldest.key and item.width
+ item.width
server: a width without room for the end symbol
serving/engine.py  serving/test_engine.py -k widths_hold
- if width > len(ids)
+ if width >= len(ids)
server: the queue has no end
serving/batching.py  serving/test_batching.py -k room
- if len(self._waiting) + len(lines) > self.most_waiting:
+ if False:
metrics: F1 without its two
metrics/labels.py  metrics/test_labels.py
- 100 * 2 * pairs[label, label]
+ 100 * pairs[label, label]
metrics: all n-grams weigh the same
metrics/scoring.py  metrics/test_d2l_bleu.py
- (0.5**n)
+ 0.25
"""
)
