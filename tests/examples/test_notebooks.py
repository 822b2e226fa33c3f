"""The notebooks run from top to bottom, with small numbers, and show what they say."""

import json
from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parents[2] / "notebooks"


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def run(monkeypatch):
    """A function that executes a notebook, some lines replaced by shorter work, and returns what its cells define."""
    figures = []

    def show():
        figures.append(len(plt.gcf().axes))
        plt.close("all")

    def executed(name, replaced):
        defined = {"figures": figures}
        source = "\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
        for line, shorter in replaced.items():
            assert line in source
            source = source.replace(line, shorter)
        exec(compile(source, name, "exec"), defined)
        return defined

    monkeypatch.setattr(plt, "show", show)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield executed


@pytest.mark.drill
def test_the_paper_and_its_code(run):
    found = run("paper_and_code", {"UPDATES = 250": "UPDATES = 3"})
    at = np.arange(found["LENGTH"])
    distance = at[:, None] - at[None]  # how far before the output an input lies
    for (side, depth), field in found["fields"].items():
        reach = depth * (found["WIDTH"] - 1)
        seen = (distance >= 0) & (distance <= reach) if side == "decoder" else abs(distance) <= reach // 2
        np.testing.assert_array_equal(np.asarray(field) > 0, seen)
    np.testing.assert_allclose(found["attention"].sum(axis=-1), 1.0, rtol=1e-5)
    assert found["difference"] < 1e-5
    assert max(found["scaled"]) < 100 < max(found["unscaled"])
    assert found["figures"] == [6, 2, 1]


@pytest.mark.drill
def test_the_anatomy_of_a_beam_search(run):
    found = run("anatomy_of_a_beam_search", {"WIDTHS = (1, 2, 4, 8, 16)": "WIDTHS = (1, 2)"})
    best = max(found["everything"], key=found["log_p"])
    assert found["ours"][0][0] == (*best, found["EOS"])
    for (words, score), tokens, theirs in zip(
        found["ours"], found["found"].tokens[0].tolist(), found["found"].scores[0], strict=True
    ):
        assert list(words) == tokens[: len(words)]
        np.testing.assert_allclose(theirs, score, rtol=1e-5)
    assert sorted(found["lengths"].tolist()) == found["lengths"].tolist()
    assert found["lengths"][0] < found["lengths"][-1]
    assert found["scores"][0] <= found["scores"][1]
    assert found["stops"]["fairseq"] < found["stops"]["exact"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells(path.stem))
    assert f'"{path.stem}"' in Path(__file__).read_text()
