#include <torch/extension.h>

#define FACTOR 2

template <class T>
T twice(T x) {
  return FACTOR * x;
}

template float twice(float);

torch::Tensor doubled(torch::Tensor x) { return twice(x); }
