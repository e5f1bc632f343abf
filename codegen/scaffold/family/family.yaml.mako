family: ${family}
summary: z = alpha * x + y, row by row.
arguments:
  x:     {tensor: [M, N], dtype: dtype, doc: the scaled tensor}
  y:     {tensor: [M, N], dtype: dtype, doc: the added tensor}
  z:     {output: [M, N], dtype: dtype, doc: the sum}
  alpha: {scalar: f32, default: 1.0, doc: the factor on x}
parameters:
  dtype: {type: dtype, values: [bf16, fp16, f32]}
reference: reference.py:${family}
front: ${family}
