/* Moore Threads MUSA under the CUDA names that the backend uses: one header, so that the same
 * sources compile for both.  Files with PTX (the products on matrix units) are left out of such a
 * build; every one of them has a portable twin.  tests/scripts/house.py holds that no other file
 * uses a CUDA name that is not here; tests/musa has a mock of the SDK, with which the portable
 * build can be made and run on a CUDA device. */
#ifndef FL_OPS_GPU_MUSA_H
#define FL_OPS_GPU_MUSA_H

#include <musa_fp16.h>
#include <musa_runtime.h>

#define cudaDeviceProp musaDeviceProp
#define cudaDeviceReset musaDeviceReset
#define cudaErrorInsufficientDriver musaErrorInsufficientDriver
#define cudaError_t musaError_t
#define cudaEventCreate musaEventCreate
#define cudaEventCreateWithFlags musaEventCreateWithFlags
#define cudaEventDestroy musaEventDestroy
#define cudaEventDisableTiming musaEventDisableTiming
#define cudaEventElapsedTime musaEventElapsedTime
#define cudaEventRecord musaEventRecord
#define cudaEventSynchronize musaEventSynchronize
#define cudaEvent_t musaEvent_t
#define cudaFree musaFree
#define cudaFreeHost musaFreeHost
#define cudaFuncAttributeMaxDynamicSharedMemorySize musaFuncAttributeMaxDynamicSharedMemorySize
#define cudaFuncSetAttribute musaFuncSetAttribute
#define cudaGetDeviceCount musaGetDeviceCount
#define cudaGetDeviceProperties musaGetDeviceProperties
#define cudaGetErrorString musaGetErrorString
#define cudaGetLastError musaGetLastError
#define cudaGraphDestroy musaGraphDestroy
#define cudaGraphExecDestroy musaGraphExecDestroy
#define cudaGraphExec_t musaGraphExec_t
#define cudaGraphInstantiate musaGraphInstantiate
#define cudaGraphLaunch musaGraphLaunch
#define cudaGraph_t musaGraph_t
#define cudaKernel_t musaKernel_t
#define cudaLaunchKernel musaLaunchKernel
#define cudaLibraryGetKernel musaLibraryGetKernel
#define cudaLibraryLoadData musaLibraryLoadData
#define cudaLibraryUnload musaLibraryUnload
#define cudaLibrary_t musaLibrary_t
#define cudaMalloc musaMalloc
#define cudaMallocHost musaMallocHost
#define cudaMemGetInfo musaMemGetInfo
#define cudaMemcpy2DAsync musaMemcpy2DAsync
#define cudaMemcpyAsync musaMemcpyAsync
#define cudaMemcpyDeviceToDevice musaMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost musaMemcpyDeviceToHost
#define cudaMemcpyHostToDevice musaMemcpyHostToDevice
#define cudaMemsetAsync musaMemsetAsync
#define cudaSetDevice musaSetDevice
#define cudaStreamBeginCapture musaStreamBeginCapture
#define cudaStreamCaptureModeThreadLocal musaStreamCaptureModeThreadLocal
#define cudaStreamCreateWithFlags musaStreamCreateWithFlags
#define cudaStreamDestroy musaStreamDestroy
#define cudaStreamEndCapture musaStreamEndCapture
#define cudaStreamNonBlocking musaStreamNonBlocking
#define cudaStreamSynchronize musaStreamSynchronize
#define cudaStream_t musaStream_t
#define cudaSuccess musaSuccess

#endif
