name: tests
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - name: build (nvcc comes from PyPI)
        run: pip install ".[test]"
      - name: the generated tree is that of the specs
        run: kernelmint check
      - name: registers and spills are the baseline's
        run: ptx-report --installed --check
      - name: tests
        run: pytest
