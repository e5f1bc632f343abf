[build-system]
requires = ["kernelmint>=${version}", "scikit-build-core>=1.0"]
build-backend = "kernelmint.backend" # scikit-build-core, plus PyPI's nvcc if the machine has none

[project]
name = "${distribution}"
version = "0.1.0"
description = "CUDA and CPU kernels, called by key."
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["kernelmint[torch]>=${version}"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."kernelmint.packs"]
${name} = "${name}._pack"

[tool.scikit-build]
minimum-version = "1.0"
cmake.version = ">=3.26"
ninja.make-fallback = false
build-dir = "build/cmake" # a wheel takes the objects of `pip install -e .`
wheel.py-api = "py3" # the pack's libraries know no Python: one wheel serves them all
wheel.packages = ["${name}"]
logging.level = "WARNING"

[tool.pytest.ini_options]
testpaths = ["tests", "kernel_specs"]
addopts = "--import-mode=importlib"
