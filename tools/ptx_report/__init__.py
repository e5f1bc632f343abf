"""From any ptxas log to a table of registers and spills that can gate a build.

`records`, `parser`, `symbols`, `inputs`, `fingerprints` and `collect` use the standard library
alone: the build runs them in an isolated environment. The rest adds click, rich and Mako.
"""
