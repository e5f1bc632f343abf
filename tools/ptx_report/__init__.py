"""From any ptxas log to a table of registers and spills that can gate a build.

A log's bytes become events (`events`), and these records (`parser`); `waiting` says whose a
line is that names none. Those, `rows`, `symbols`, `inputs`, `files`, `fingerprints` and
`collect` use the standard library alone: the build runs them in an isolated environment. The rest
adds click, rich and Mako.
"""
