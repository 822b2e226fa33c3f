"""Vocabularies of another run: reversed sides are refused, other names are told."""

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run import finetuning, run_folder
from tests import tiny

CASES = {
    "the same": (("de", "en"), ("de", "en"), False, None),
    "one other": (("de", "en"), ("nl", "en"), False, "'de' there and 'nl' here"),
    "both others": (("de", "en"), ("en", "fr"), False, "'de' there and 'en' here and 'en' there and 'fr' here"),
    "reversed with one vocabulary": (("de", "en"), ("en", "de"), True, "'de' there and 'en' here and 'en' there and"),
    "the target alone": (("de", "en"), ("", "en"), False, None),
    "the source alone": (("de", "en"), ("", "de"), False, "'en' there and 'de' here"),
}


@pytest.mark.parametrize(("there", "here", "joint", "said"), CASES.values(), ids=CASES.keys())
def test_other_names_are_told(there, here, joint, said):
    told = []
    configs = (DataConfig(src=src, tgt=tgt) for src, tgt in (there, here))
    finetuning.compare_sides(*configs, "training.finetune_from=run", joint=joint, tell=told.append)
    assert len(told) == (said is not None)
    assert all(
        line.startswith(f"training.finetune_from=run: that run names its sides differently, {said}") for line in told
    )


def test_reversed_sides_are_refused_unless_one_vocabulary_serves_both():
    there, here = DataConfig(src="de", tgt="en"), DataConfig(src="en", tgt="de")
    with pytest.raises(
        UserError,
        match=r"^x=y belongs to a run from 'de' to 'en', but this one is from 'en' to 'de': each side would use the "
        r"vocabulary of the other; swap data.src and data.tgt, or leave the field out$",
    ):
        finetuning.compare_sides(there, here, "x=y", joint=False, tell=pytest.fail)
    finetuning.compare_sides(there, here, "data.vocabulary.dir=y", joint=True, tell=pytest.fail)


def test_a_folder_of_vocabularies_need_not_be_that_of_a_run(tmp_path):
    assert finetuning.corpus_beside(str(tmp_path / "vocab")) is None
    assert finetuning.corpus_beside("gs://bucket/run/vocab") is None
    cfg = tiny.config()
    run_folder.write_config(tmp_path, cfg)
    assert finetuning.corpus_beside(str(tmp_path / "vocab")) == cfg.data
    (tmp_path / "config.json").write_text("{}")
    assert finetuning.corpus_beside(str(tmp_path / "vocab")) is None
