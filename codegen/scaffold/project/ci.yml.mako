name: tests
on: [push, pull_request]
permissions: {contents: read}
jobs:
  test:
    runs-on: ubuntu-latest
    outputs:
      comment: <%text>${{ steps.diff.outputs.comment }}</%text>
    steps:
      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4.4.0
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with: {python-version: "3.12"}
      - name: build (nvcc comes from PyPI)
        run: pip install ".[test]"
      - name: the generated tree is that of the specs
        run: kernelmint check
      - name: registers and spills beside those of the branch that is merged into
        id: diff
        if: github.event_name == 'pull_request'
        env:
          BASE: <%text>${{ github.base_ref }}</%text>
        run: |
          git fetch --quiet --depth=1 origin "$BASE"
          ptx-report diff FETCH_HEAD installed --github --markdown comment.md
          { echo 'comment<<END OF THE COMMENT'; cat comment.md; echo 'END OF THE COMMENT'; } >> "$GITHUB_OUTPUT"
          cat comment.md >> "$GITHUB_STEP_SUMMARY"
      - name: registers and spills are the baseline's
        run: ptx-report --installed --check
      - name: tests
        run: pytest
  comment: # may write, and runs nothing of the pull request
    needs: test
    if: always() && needs.test.outputs.comment && github.event.pull_request.head.repo.full_name == github.repository
    runs-on: ubuntu-latest
    permissions: {pull-requests: write}
    steps:
      - env:
          COMMENT: <%text>${{ needs.test.outputs.comment }}</%text>
          GH_TOKEN: <%text>${{ github.token }}</%text>
          GH_REPO: <%text>${{ github.repository }}</%text>
          NUMBER: <%text>${{ github.event.pull_request.number }}</%text>
        run: |
          printf '%s\n' "$COMMENT" > comment.md
          gh pr comment "$NUMBER" --edit-last --body-file comment.md || gh pr comment "$NUMBER" --body-file comment.md
