name: tests
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4.4.0
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with: {python-version: "3.12"}
      - name: build (nvcc comes from PyPI)
        run: pip install ".[test]"
      - name: the generated tree is that of the specs
        run: kernelmint check
      - name: registers and spills are the baseline's
        run: ptx-report --installed --check
      - name: tests
        run: pytest
