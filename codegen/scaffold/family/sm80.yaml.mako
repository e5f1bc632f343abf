target: sm80
kernel: sm80.cuh:${family}_sm80
parameters:
  threads: {type: int, token: t, doc: threads of a block}
  tile:    {type: int, token: n, doc: elements of a row that a block takes}
constraints:
  - {that: threads % 32 == 0,   because: a block is made of whole warps}
  - {that: tile % threads == 0, because: every thread takes the same number of elements}
limits: {threads: 1024}
launch: {grid: ["M * ceil_div(N, tile)"], block: threads}
sets:
  default:
    - product: {dtype: [bf16, fp16, f32], threads: [256], tile: [1024]}
budget: {spill_bytes: 0}
