/* A mock of the MUSA runtime for tests: its names, implemented over CUDA.  Only what
 * src/ops/gpu/musa.h renames is here, so a build with it shows that the portable sources need
 * nothing else. */
#ifndef MOCK_MUSA_RUNTIME_H
#define MOCK_MUSA_RUNTIME_H

#include <cuda_runtime.h>

typedef cudaDeviceProp musaDeviceProp;
typedef cudaError_t musaError_t;
typedef cudaEvent_t musaEvent_t;
typedef cudaGraphExec_t musaGraphExec_t;
typedef cudaGraph_t musaGraph_t;
typedef cudaStream_t musaStream_t;
typedef cudaKernel_t musaKernel_t;
typedef cudaLibrary_t musaLibrary_t;

static const auto musaErrorInsufficientDriver = cudaErrorInsufficientDriver;
static const auto musaEventDisableTiming = cudaEventDisableTiming;
static const auto musaFuncAttributeMaxDynamicSharedMemorySize =
    cudaFuncAttributeMaxDynamicSharedMemorySize;
static const auto musaMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
static const auto musaMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
static const auto musaMemcpyHostToDevice = cudaMemcpyHostToDevice;
static const auto musaStreamCaptureModeThreadLocal = cudaStreamCaptureModeThreadLocal;
static const auto musaStreamNonBlocking = cudaStreamNonBlocking;
static const auto musaSuccess = cudaSuccess;

/* These are macros of CUDA, which the sources must not see. */
#undef cudaEventDisableTiming
#undef cudaStreamNonBlocking

/* Functions: whatever the arguments, the one of CUDA. */
#define MOCK(musa, cuda)                                                                           \
    template <typename... A> static inline auto musa(A... a)                                       \
    {                                                                                              \
        return cuda(a...);                                                                         \
    }
MOCK(musaDeviceReset, cudaDeviceReset)
MOCK(musaEventCreate, cudaEventCreate)
MOCK(musaEventCreateWithFlags, cudaEventCreateWithFlags)
MOCK(musaEventDestroy, cudaEventDestroy)
MOCK(musaEventElapsedTime, cudaEventElapsedTime)
MOCK(musaEventRecord, cudaEventRecord)
MOCK(musaEventSynchronize, cudaEventSynchronize)
MOCK(musaFree, cudaFree)
MOCK(musaFreeHost, cudaFreeHost)
MOCK(musaFuncSetAttribute, cudaFuncSetAttribute)
MOCK(musaGetDeviceCount, cudaGetDeviceCount)
MOCK(musaGetDeviceProperties, cudaGetDeviceProperties)
MOCK(musaGetErrorString, cudaGetErrorString)
MOCK(musaGetLastError, cudaGetLastError)
MOCK(musaGraphDestroy, cudaGraphDestroy)
MOCK(musaGraphExecDestroy, cudaGraphExecDestroy)
MOCK(musaGraphInstantiate, cudaGraphInstantiate)
MOCK(musaGraphLaunch, cudaGraphLaunch)
MOCK(musaLaunchKernel, cudaLaunchKernel)
MOCK(musaLibraryGetKernel, cudaLibraryGetKernel)
MOCK(musaLibraryLoadData, cudaLibraryLoadData)
MOCK(musaLibraryUnload, cudaLibraryUnload)
MOCK(musaMalloc, cudaMalloc)
MOCK(musaMallocHost, cudaMallocHost)
MOCK(musaMemGetInfo, cudaMemGetInfo)
MOCK(musaMemcpy2DAsync, cudaMemcpy2DAsync)
MOCK(musaMemcpyAsync, cudaMemcpyAsync)
MOCK(musaMemsetAsync, cudaMemsetAsync)
MOCK(musaSetDevice, cudaSetDevice)
MOCK(musaStreamBeginCapture, cudaStreamBeginCapture)
MOCK(musaStreamCreateWithFlags, cudaStreamCreateWithFlags)
MOCK(musaStreamDestroy, cudaStreamDestroy)
MOCK(musaStreamEndCapture, cudaStreamEndCapture)
MOCK(musaStreamSynchronize, cudaStreamSynchronize)
#undef MOCK

#endif
