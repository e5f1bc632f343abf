"""Commands for people: reports, comparisons, benchmarks and tuning.

This package is `kernelmint.tools`. A wheel holds it in `kernelmint/tools`. In a checkout,
kernelmint/__init__.py appends the checkout to `kernelmint.__path__`, so the import system finds
`kernelmint.tools` here; it is also importable as `tools`. Its modules import each other
relatively, so they work under either name.
"""
