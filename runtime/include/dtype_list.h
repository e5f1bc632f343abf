// Written by `python -m codegen.dtypes`, out of its table; not edited by hand.
// A row: the value of the enum Dtype, PyTorch's name, DLPack's code, bits.
#pragma once

// clang-format off
#define KERNELMINT_DTYPES(ROW) \
  ROW(bf16, "torch.bfloat16", kBfloat, 16) \
  ROW(fp16, "torch.float16", kFloat, 16) \
  ROW(f32, "torch.float32", kFloat, 32) \
  ROW(f64, "torch.float64", kFloat, 64) \
  ROW(i8, "torch.int8", kInt, 8) \
  ROW(u8, "torch.uint8", kUInt, 8) \
  ROW(i32, "torch.int32", kInt, 32) \
  ROW(i64, "torch.int64", kInt, 64) \
  ROW(boolean, "torch.bool", kBool, 8) \
  ROW(e4m3fn, "torch.float8_e4m3fn", kFloat8E4M3Fn, 8) \
  ROW(e5m2, "torch.float8_e5m2", kFloat8E5M2, 8) \
  ROW(i16, "torch.int16", kInt, 16) \
  ROW(u16, "torch.uint16", kUInt, 16) \
  ROW(u32, "torch.uint32", kUInt, 32) \
  ROW(u64, "torch.uint64", kUInt, 64)
// clang-format on
