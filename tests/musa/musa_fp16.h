/* See musa_runtime.h. */
#include <cuda_fp16.h>
