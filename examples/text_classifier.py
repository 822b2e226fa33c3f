"""A text classifier (Kim 2014) with a custom loss: does a text contain the word pair "5 6"?

    python examples/text_classifier.py

`classifier_logits` returns the scores of the labels, and a loss of them trains like any other. Both words occur in most
texts, so the label depends on the order of adjacent words, which a convolution of width 2 sees. The script prints the
loss and the accuracy.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import convs2s_jax as convs2s

V, LENGTH, EOS, PAD = 12, 12, 2, 1
CFG = convs2s.build(
    convs2s.ClassifierConfig,
    {"embedding_dim": 16, "dropout": 0.2, "features": {"kind": "kim", "widths": [2, 3], "maps": 16}},
)
OPTIMIZER = optax.adam(3e-3)


class Sums(NamedTuple):
    """Sums over the texts of a batch; `tokens` is the number of texts, which training divides by."""

    loss: jax.Array
    tokens: jax.Array
    correct: jax.Array


def cross_entropy(params, batch, key):
    """Sum -log p(label) over texts; the targets of a batch are labels [B]."""
    logits = convs2s.classifier_logits(params, CFG, batch.src, key=key)  # [B, 2]
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tgt)
    correct = logits.argmax(axis=-1) == batch.tgt
    return Sums(loss=jnp.sum(nll), tokens=jnp.asarray(len(nll)), correct=jnp.sum(correct))


def texts(seed, rows=64):
    """Make a batch of texts of 6 to 11 random words, half of them with the pair, and their labels."""
    rng = np.random.default_rng(seed)
    src, labels = np.full((rows, LENGTH), PAD, np.int32), np.arange(rows, dtype=np.int32) % 2
    for row, label in zip(src, labels, strict=True):
        while True:
            words = rng.choice([5, 6, 7, 8], rng.integers(6, LENGTH))
            if (((words[:-1] == 5) & (words[1:] == 6)).any()) == label:
                break
        row[: len(words)], row[len(words)] = words, EOS
    return convs2s.Batch(src=jnp.array(src), tgt=jnp.array(labels))


def main(updates=300):
    """Train the model. Return the parameters and the accuracy on new texts."""
    params = convs2s.init_classifier(jax.random.key(0), CFG, vocabulary=V, labels=2)
    state = convs2s.init_state(convs2s.split_classifier(params, CFG), OPTIMIZER)
    step = convs2s.compile_steps(cross_entropy, OPTIMIZER)
    for i in range(updates):
        state, report = convs2s.update(step, state, [texts(i)], rate=None, key=jax.random.key(i))
        if (i + 1) % 50 == 0:
            sums = report.loss
            loss, correct = sums.loss / sums.tokens, sums.correct / sums.tokens
            print(f"update {i + 1:3}: loss {loss:.3f}, {correct:.0%} of the texts correct")
    new = texts(updates, rows=1000)
    params = convs2s.merge_kernels(state.params)
    accuracy = float(cross_entropy(params, new, None).correct) / len(new.src)
    print(f"{accuracy:.1%} of new texts correct")
    return params, accuracy


if __name__ == "__main__":
    main()
