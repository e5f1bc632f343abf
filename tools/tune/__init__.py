"""A tuner: it finds the fastest kernels of a family for the devices of this machine, or of a
cluster.

Triton's autotuner does in one function the work of `plan` (which configurations suit a shape),
`worker` (calls and times them) and `rows` (the file). The other modules exist because kernels are
built ahead, and rows are checked in and believed:

    tuner        the way from a plan to rows
    worker       a process for the calls: a kernel that hangs or crashes must not end hours of work
    elimination  which is faster for sure: a tie written as a win would change at every tuning
    journal      every result at once, so that a run that is killed goes on
    code         the hash of machine code: only new code is timed; and ptxas's verdict
    t4           all results, for other tools
    executor     the builder and measurer, as `tuner` sees it: `local` is this machine, `cluster` a
                 Ray cluster, by tools/cluster; `node` runs on a node
"""
