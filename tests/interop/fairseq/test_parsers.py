"""Any bytes in a file of fairseq: a valid result or one sentence (property tests by Hypothesis)."""

import json
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import checkpoint, dictionaries, files, recipe
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run.config import TrainingConfig
from tests.interop.fairseq import examples, hostile

quick = settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
many = settings(quick, max_examples=500)


def one_sentence(error: UserError) -> None:
    assert "\n" not in str(error)
    assert 0 < len(str(error)) < 3000


@pytest.fixture(scope="module")
def content():
    return examples.whole()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.integers(-2, 40)
    | st.floats()
    | st.floats(0, 1)
    | st.text(max_size=20)
    | st.sampled_from(
        ["[(16, 3)] * 2", "[3, 5]", "True", "nag", "adam", "fixed", "cosine", "inverse_sqrt", "(0.9, 0.98)"]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
NAMES = sorted(
    {*fairseq.families.FAMILIES["fconv"].rules, *fairseq.families.FAMILIES["lightconv"].rules, *recipe.RULES}
)
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)
ARCHES = st.sampled_from(["fconv", "fconv_iwslt_de_en", "lightconv", "lightconv_iwslt_de_en", "transformer"])


def arguments_are_read_or_refused(args, arch):
    args = {"arch": arch} | args
    try:
        assert isinstance(fairseq.config_from_args(args), ModelConfig)
    except UserError as error:
        one_sentence(error)
    try:
        found = recipe.recipe(args, 0.25, 1)
        fairseq.importing.build(TrainingConfig, found.training, "training")
        assert found.seed >= 1
    except UserError as error:
        one_sentence(error)


def a_dictionary_is_read_or_refused(data, folder):
    for language in ("de", "en"):
        (folder / f"dict.{language}.txt").write_bytes(data)
    try:
        found = dictionaries.read(folder, ("de", "en"), (None, None))
    except UserError as error:
        one_sentence(error)
        return
    assert isinstance(found, Vocabularies)
    try:
        dictionaries.write(found.src, folder, "again")
    except UserError as error:  # a word that contains white space is read, as by fairseq, and not written
        one_sentence(error)
        return
    again = dictionaries.read(folder, ("again", "again"), (None, None))
    assert again.src.fingerprint == found.src.fingerprint


def bytes_are_refused(data, path):
    """No random bytes are a checkpoint."""
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        checkpoint.load(path)
    one_sentence(error.value)


def a_changed_checkpoint_is_read_or_refused(changes, path, whole):
    """Bytes are replaced in the pickle, the checksums are right."""

    def changed(name, old):
        if not name.endswith("/data.pkl"):
            return old
        new = bytearray(old)
        for place, value in changes:
            new[place % len(new)] = value
        return bytes(new)

    hostile.rebuilt(whole, path, changed)
    try:
        found = checkpoint.load(path)
    except UserError as error:
        one_sentence(error)
        return
    assert all(np.all(np.isfinite(value)) for value in found.tensors.values())
    assert 0 <= found.updates < 2**31
    assert 1 <= found.epoch <= 1_000_001
    assert found.rate is None or 0 < found.rate <= 1e6


def arrays_are_read_or_refused(parts, arguments, path):
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(zipfile.ZipInfo(name), part)
    path.with_name("config.json").write_text(arguments)
    try:
        found = files.read(path)
    except UserError as error:
        one_sentence(error)
        return
    assert isinstance(found["args"], dict)
    assert all(isinstance(value, np.ndarray) for value in found["model"].values())


LINES = st.lists(
    st.tuples(
        st.text(max_size=5) | st.sampled_from(["<s>", "<unk>", "a", "a"]),
        st.sampled_from([" ", "", "\t"]),
        st.integers(0, 10**30).map(str) | st.sampled_from(["9" * 5000, "-1", "1 #fairseq:overwrite", "\u0663", "1.5"]),
    ).map("".join),
    max_size=6,
)
DICTIONARIES = LINES.map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")) | st.binary(max_size=60)
CHANGES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=5)
BYTES = (
    st.binary(max_size=200)
    | st.binary(max_size=100).map(lambda b: b"PK\x03\x04" + b)
    | st.binary(max_size=100).map(lambda b: b"\x80\x02" + b)
)
ARRAY_PARTS = st.dictionaries(
    st.text(st.characters(codec="ascii", exclude_characters="\x00"), min_size=1, max_size=8),
    st.binary(max_size=150)
    | st.tuples(
        st.sampled_from(["<f4", "<f8", "|i1", "|O", "<U2", "x"]),
        st.text("(),-0123 L", max_size=12),
        st.binary(max_size=16),
    ).map(lambda x: _npy(*x)),
    max_size=3,
)


def _npy(kind, shape, data):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


JSONS = VALUES.map(json.dumps) | st.text(max_size=20) | st.just("{}")


@quick
@given(args=ARGUMENTS, arch=ARCHES)
def test_any_arguments(args, arch):
    arguments_are_read_or_refused(args, arch)


@quick
@given(data=DICTIONARIES)
def test_any_dictionary(data, tmp_path):
    a_dictionary_is_read_or_refused(data, tmp_path)


@quick
@given(data=BYTES)
def test_any_bytes(data, tmp_path):
    pytest.importorskip("torch")
    bytes_are_refused(data, tmp_path / "x.pt")


@quick
@given(changes=CHANGES)
def test_any_change_of_a_pickle(changes, tmp_path, content):
    whole = tmp_path / "whole.pt"
    if not whole.exists():
        examples.save(tmp_path, content, whole.name)
    a_changed_checkpoint_is_read_or_refused(changes, tmp_path / "x.pt", whole)


@quick
@given(parts=ARRAY_PARTS, arguments=JSONS)
def test_any_arrays(parts, arguments, tmp_path):
    arrays_are_read_or_refused(parts, arguments, tmp_path / "x.npz")


def holds_for_many(strategies, check, tries):
    @many
    @given(st.tuples(*strategies))
    def run(values):
        tries.append(1)
        check(*values)

    run()


@pytest.mark.drill
def test_many_files_of_any_content(tmp_path, content, tally):
    """The same properties, 500 examples of each."""
    path, whole, tries = tmp_path / "x.pt", examples.save(tmp_path, content, "whole.pt"), []
    for strategies, check in (
        ((ARGUMENTS, ARCHES), arguments_are_read_or_refused),
        ((DICTIONARIES,), lambda data: a_dictionary_is_read_or_refused(data, tmp_path)),
        ((BYTES,), lambda data: bytes_are_refused(data, path)),
        ((CHANGES,), lambda changes: a_changed_checkpoint_is_read_or_refused(changes, path, whole)),
        ((ARRAY_PARTS, JSONS), lambda parts, args: arrays_are_read_or_refused(parts, args, tmp_path / "x.npz")),
    ):
        holds_for_many(strategies, check, tries)
    tally(tries=len(tries))
