// Written by `python -m codegen.core.dtypes`, out of its table; not edited by hand.
// A row: the value of the enum Dtype, PyTorch's name, DLPack's code, bits.
#pragma once

// clang-format off
#define KERNELMINT_DTYPES(ROW) \
  ROW(bf16, "torch.bfloat16", 4, 16) \
  ROW(fp16, "torch.float16", 2, 16) \
  ROW(f32, "torch.float32", 2, 32) \
  ROW(f64, "torch.float64", 2, 64) \
  ROW(i8, "torch.int8", 0, 8) \
  ROW(u8, "torch.uint8", 1, 8) \
  ROW(i32, "torch.int32", 0, 32) \
  ROW(i64, "torch.int64", 0, 64) \
  ROW(boolean, "torch.bool", 6, 8) \
  ROW(e4m3fn, "torch.float8_e4m3fn", 10, 8) \
  ROW(e5m2, "torch.float8_e5m2", 12, 8) \
  ROW(i16, "torch.int16", 0, 16) \
  ROW(u16, "torch.uint16", 1, 16) \
  ROW(u32, "torch.uint32", 1, 32) \
  ROW(u64, "torch.uint64", 1, 64) \
  ROW(complex64, "torch.complex64", 5, 64) \
  ROW(complex128, "torch.complex128", 5, 128) \
  ROW(e2m1x2, "torch.float4_e2m1fn_x2", 17, 8)
// clang-format on
