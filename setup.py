"""The packages: configurations lie at the top of the repository and are installed inside the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["convs2s_jax*"]), "convs2s_jax.configs"],
    package_dir={"convs2s_jax.configs": "configs"},
)
