"""What an update depends on: few files of the package, and nothing that reads data or judges outputs."""

import grimp
import pytest

MOST = {"step": 20, "parallel": 25, "loss": 62}
"""Files of the package that may be reached from a module of `training`; `loss` needs the models."""


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("convs2s_jax")


@pytest.mark.parametrize("module", MOST)
def test_an_update_reaches_few_files(module, graph):
    reached = graph.find_upstream_modules(f"convs2s_jax.training.{module}")
    assert len(reached) <= MOST[module], sorted(reached)
    rooms = {name.split(".")[1] for name in reached if "." in name}
    assert rooms <= {"core", "models", "nn", "training"}
