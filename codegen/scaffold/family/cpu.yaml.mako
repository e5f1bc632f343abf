target: cpu
kernel: cpu.h
parameters:
  segment: {type: int, token: n, doc: elements of a row that a task takes}
constraints:
  - {that: segment % 16 == 0, because: the widest vectors hold 16 elements}
sets:
  default:
    - product: {dtype: [bf16, fp16, f32], segment: [8192]}
