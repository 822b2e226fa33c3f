"""Keys, token ids and parameters are taken in each form that JAX and numpy have for them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.training.loss import Batch, loss
from tests.models.small_model import BATCH, CFG, SRC, init, initialised


@pytest.fixture(scope="module")
def made():
    return initialised()


def test_a_raw_key_gives_what_the_typed_key_of_its_seed_gives(made):
    compute = jax.jit(lambda key: (init(key), loss(made.params, CFG, BATCH, key=key)))
    raw, typed, other = (compute(key) for key in (jax.random.PRNGKey(3), jax.random.key(3), jax.random.key(4)))
    jax.tree.map(np.testing.assert_array_equal, raw, typed)
    assert float(typed[1].loss) != float(other[1].loss)


def test_ids_of_8_bits_have_the_losses_of_wider_ones():
    """With a vocabulary that 8 bits cannot count. The gradient of the training loss was another."""
    params = model.init(jax.random.key(0), CFG, source_vocabulary=300, target_vocabulary=300)
    for of in (loss, partial(loss, first_order=True)):
        wide, narrow = (
            jax.jit(jax.value_and_grad(lambda p, ids: of(p, CFG, Batch(src=ids, tgt=ids)).loss))(  # noqa: B023
                params, SRC.astype(dtype)
            )
            for dtype in (jnp.int32, jnp.uint8)
        )
        jax.tree.map(np.testing.assert_array_equal, narrow, wide)
