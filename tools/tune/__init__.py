"""A tuner: it finds the fastest kernels of a family for the devices of this machine, or of a
cluster.

What Triton's autotuner does in one function is here: `plan` (which configurations suit a shape),
`worker` (calls and times them) and `rows` (what is written). The others are there because kernels
are built ahead, and rows are checked in and believed:

    tuner        the way from a plan to rows
    worker       a process for the calls: a kernel that hangs or crashes must not end hours of work
    elimination  which is faster for sure: a tie written as a win would change at every tuning
    journal      every result at once, so that a run that is killed goes on
    code         the hash of machine code: only what is new is timed; and what ptxas rules out
    t4           all results, for other tools
    executor     what builds and measures, as `tuner` sees it: `local` is this machine, `cluster` a
                 Ray cluster, of which `node` is what runs on a node, `shipping` what is sent
"""
