//! Driver functions: launches, streams, events, modules, libraries.
//!
//! Columns and how they are made: `scripts/driver_table.py`.

/// Hands the rows of this group to the macro `$then`, after the word `execution`.
#[macro_export]
macro_rules! rows_execution {
    ($then:ident) => { $then! { execution;
        forward none cuCtxRecordEvent: cuCtxRecordEvent@12050 (a: CUcontext, b: CUevent);
        wait sim cuCtxSynchronize: cuCtxSynchronize@2000 ();
        wait sim cuCtxSynchronize: cuCtxSynchronize_v2@13000 (a: CUcontext);
        forward none cuCtxWaitEvent: cuCtxWaitEvent@12050 (a: CUcontext, b: CUevent);
        forward sim cuEventQuery: cuEventQuery@2000 (a: CUevent);
        forward sim cuEventRecord: cuEventRecord@2000 / cuEventRecord_ptsz@7000 (a: CUevent, b: CUstream);
        forward sim cuEventRecordWithFlags: cuEventRecordWithFlags@11010 / cuEventRecordWithFlags_ptsz@11010 (a: CUevent, b: CUstream, c: c_uint);
        wait sim cuEventSynchronize: cuEventSynchronize@2000 (a: CUevent);
        forward sim cuFuncGetAttribute: cuFuncGetAttribute@2020 (a: *mut c_int, b: c_int, c: CUfunction);
        forward sim cuFuncGetModule: cuFuncGetModule@11000 (a: *mut CUmodule, b: CUfunction);
        forward sim cuFuncGetName: cuFuncGetName@12030 (a: *mut *const c_char, b: CUfunction);
        forward sim cuFuncGetParamCount: cuFuncGetParamCount@13020 (a: CUfunction, b: *mut usize);
        forward sim cuFuncGetParamInfo: cuFuncGetParamInfo@12040 (a: CUfunction, b: usize, c: *mut usize, d: *mut usize);
        forward none cuFuncSetBlockShape: cuFuncSetBlockShape@2000 (a: CUfunction, b: c_int, c: c_int, d: c_int);
        forward none cuFuncSetSharedSize: cuFuncSetSharedSize@2000 (a: CUfunction, b: c_uint);
        forward none cuGreenCtxRecordEvent: cuGreenCtxRecordEvent@12040 (a: CUgreenCtx, b: CUevent);
        forward none cuGreenCtxWaitEvent: cuGreenCtxWaitEvent@12040 (a: CUgreenCtx, b: CUevent);
        forward sim cuKernelGetAttribute: cuKernelGetAttribute@12000 (a: *mut c_int, b: c_int, c: CUkernel, d: CUdevice);
        retry sim cuKernelGetFunction: cuKernelGetFunction@12000 (a: *mut CUfunction, b: CUkernel);
        forward sim cuKernelGetLibrary: cuKernelGetLibrary@12050 (a: *mut CUlibrary, b: CUkernel);
        forward sim cuKernelGetName: cuKernelGetName@12030 (a: *mut *const c_char, b: CUkernel);
        forward sim cuKernelGetParamCount: cuKernelGetParamCount@13020 (a: CUkernel, b: *mut usize);
        forward sim cuKernelGetParamInfo: cuKernelGetParamInfo@12040 (a: CUkernel, b: usize, c: *mut usize, d: *mut usize);
        submit none cuLaunch: cuLaunch@2000 (a: CUfunction);
        hook sim cuLaunchCooperativeKernel: cuLaunchCooperativeKernel@9000 / cuLaunchCooperativeKernel_ptsz@9000 (a: CUfunction, b: c_uint, c: c_uint, d: c_uint, e: c_uint, f: c_uint, g: c_uint, h: c_uint, i: CUstream, j: *mut *mut c_void);
        submit none cuLaunchCooperativeKernelMultiDevice: cuLaunchCooperativeKernelMultiDevice@9000 (a: *mut CUDA_LAUNCH_PARAMS, b: c_uint, c: c_uint);
        submit none cuLaunchGrid: cuLaunchGrid@2000 (a: CUfunction, b: c_int, c: c_int);
        submit none cuLaunchGridAsync: cuLaunchGridAsync@2000 (a: CUfunction, b: c_int, c: c_int, d: CUstream);
        forward sim cuLaunchHostFunc: cuLaunchHostFunc@10000 / cuLaunchHostFunc_ptsz@10000 (a: CUstream, b: CUhostFn, c: *mut c_void);
        forward sim cuLaunchHostFunc: cuLaunchHostFunc_v2@13010 / cuLaunchHostFunc_v2_ptsz@13010 (a: CUstream, b: CUhostFn, c: *mut c_void, d: c_uint);
        hook sim cuLaunchKernel: cuLaunchKernel@4000 / cuLaunchKernel_ptsz@7000 (a: CUfunction, b: c_uint, c: c_uint, d: c_uint, e: c_uint, f: c_uint, g: c_uint, h: c_uint, i: CUstream, j: *mut *mut c_void, k: *mut *mut c_void);
        hook sim cuLaunchKernelEx: cuLaunchKernelEx@11060 / cuLaunchKernelEx_ptsz@11060 (a: *const CUlaunchConfig, b: CUfunction, c: *mut *mut c_void, d: *mut *mut c_void);
        forward none cuLibraryEnumerateKernels: cuLibraryEnumerateKernels@12040 (a: *mut CUkernel, b: c_uint, c: CUlibrary);
        forward sim cuLibraryGetGlobal: cuLibraryGetGlobal@12000 (a: *mut CUdeviceptr, b: *mut usize, c: CUlibrary, d: *const c_char);
        forward sim cuLibraryGetKernel: cuLibraryGetKernel@12000 (a: *mut CUkernel, b: CUlibrary, c: *const c_char);
        forward none cuLibraryGetKernelCount: cuLibraryGetKernelCount@12040 (a: *mut c_uint, b: CUlibrary);
        forward none cuLibraryGetManaged: cuLibraryGetManaged@12000 (a: *mut CUdeviceptr, b: *mut usize, c: CUlibrary, d: *const c_char);
        forward sim cuLibraryGetModule: cuLibraryGetModule@12000 (a: *mut CUmodule, b: CUlibrary);
        forward none cuLibraryGetUnifiedFunction: cuLibraryGetUnifiedFunction@12000 (a: *mut *mut c_void, b: CUlibrary, c: *const c_char);
        retry sim cuLibraryLoadData: cuLibraryLoadData@12000 (a: *mut CUlibrary, b: *const c_void, c: *mut c_int, d: *mut *mut c_void, e: c_uint, f: *mut c_int, g: *mut *mut c_void, h: c_uint);
        retry sim cuLibraryLoadFromFile: cuLibraryLoadFromFile@12000 (a: *mut CUlibrary, b: *const c_char, c: *mut c_int, d: *mut *mut c_void, e: c_uint, f: *mut c_int, g: *mut *mut c_void, h: c_uint);
        hook sim cuLibraryUnload: cuLibraryUnload@12000 (a: CUlibrary);
        forward none cuModuleEnumerateFunctions: cuModuleEnumerateFunctions@12040 (a: *mut CUfunction, b: c_uint, c: CUmodule);
        retry sim cuModuleGetFunction: cuModuleGetFunction@2000 (a: *mut CUfunction, b: CUmodule, c: *const c_char);
        forward none cuModuleGetFunctionCount: cuModuleGetFunctionCount@12040 (a: *mut c_uint, b: CUmodule);
        forward none cuModuleGetGlobal: cuModuleGetGlobal@2000 (a: *mut u32, b: *mut c_uint, c: CUmodule, d: *const c_char);
        forward sim cuModuleGetGlobal: cuModuleGetGlobal_v2@3020 (a: *mut CUdeviceptr, b: *mut usize, c: CUmodule, d: *const c_char);
        forward sim cuModuleGetLoadingMode: cuModuleGetLoadingMode@11070 (a: *mut c_int);
        forward none cuModuleGetSurfRef: cuModuleGetSurfRef@3000 (a: *mut CUsurfref, b: CUmodule, c: *const c_char);
        forward none cuModuleGetTexRef: cuModuleGetTexRef@2000 (a: *mut CUtexref, b: CUmodule, c: *const c_char);
        retry sim cuModuleLoad: cuModuleLoad@2000 (a: *mut CUmodule, b: *const c_char);
        retry sim cuModuleLoadData: cuModuleLoadData@2000 (a: *mut CUmodule, b: *const c_void);
        retry sim cuModuleLoadDataEx: cuModuleLoadDataEx@2010 (a: *mut CUmodule, b: *const c_void, c: c_uint, d: *mut c_int, e: *mut *mut c_void);
        retry sim cuModuleLoadFatBinary: cuModuleLoadFatBinary@2000 (a: *mut CUmodule, b: *const c_void);
        hook sim cuModuleUnload: cuModuleUnload@2000 (a: CUmodule);
        forward none cuParamSetSize: cuParamSetSize@2000 (a: CUfunction, b: c_uint);
        forward none cuParamSetTexRef: cuParamSetTexRef@2000 (a: CUfunction, b: c_int, c: CUtexref);
        forward none cuParamSetf: cuParamSetf@2000 (a: CUfunction, b: c_int, c: f32);
        forward none cuParamSeti: cuParamSeti@2000 (a: CUfunction, b: c_int, c: c_uint);
        forward none cuParamSetv: cuParamSetv@2000 (a: CUfunction, b: c_int, c: *mut c_void, d: c_uint);
        forward sim cuStreamAddCallback: cuStreamAddCallback@5000 / cuStreamAddCallback_ptsz@7000 (a: CUstream, b: CUstreamCallback, c: *mut c_void, d: c_uint);
        submit none cuStreamBatchMemOp: cuStreamBatchMemOp@8000 / cuStreamBatchMemOp_ptsz@8000 (a: CUstream, b: c_uint, c: *mut c_void, d: c_uint);
        submit sim cuStreamBatchMemOp: cuStreamBatchMemOp_v2@11070 / cuStreamBatchMemOp_v2_ptsz@11070 (a: CUstream, b: c_uint, c: *mut c_void, d: c_uint);
        retry sim cuStreamCreate: cuStreamCreate@2000 (a: *mut CUstream, b: c_uint);
        retry sim cuStreamCreateWithPriority: cuStreamCreateWithPriority@5050 (a: *mut CUstream, b: c_uint, c: c_int);
        hook sim cuStreamDestroy: cuStreamDestroy@2000 (a: CUstream);
        hook sim cuStreamDestroy: cuStreamDestroy_v2@4000 (a: CUstream);
        forward sim cuStreamQuery: cuStreamQuery@2000 / cuStreamQuery_ptsz@7000 (a: CUstream);
        wait sim cuStreamSynchronize: cuStreamSynchronize@2000 / cuStreamSynchronize_ptsz@7000 (a: CUstream);
        forward sim cuStreamWaitEvent: cuStreamWaitEvent@3020 / cuStreamWaitEvent_ptsz@7000 (a: CUstream, b: CUevent, c: c_uint);
        submit none cuStreamWaitValue32: cuStreamWaitValue32@8000 / cuStreamWaitValue32_ptsz@8000 (a: CUstream, b: CUdeviceptr, c: u32, d: c_uint);
        submit sim cuStreamWaitValue32: cuStreamWaitValue32_v2@11070 / cuStreamWaitValue32_v2_ptsz@11070 (a: CUstream, b: CUdeviceptr, c: u32, d: c_uint);
        submit none cuStreamWaitValue64: cuStreamWaitValue64@9000 / cuStreamWaitValue64_ptsz@9000 (a: CUstream, b: CUdeviceptr, c: u64, d: c_uint);
        submit sim cuStreamWaitValue64: cuStreamWaitValue64_v2@11070 / cuStreamWaitValue64_v2_ptsz@11070 (a: CUstream, b: CUdeviceptr, c: u64, d: c_uint);
        submit none cuStreamWriteValue32: cuStreamWriteValue32@8000 / cuStreamWriteValue32_ptsz@8000 (a: CUstream, b: CUdeviceptr, c: u32, d: c_uint);
        submit sim cuStreamWriteValue32: cuStreamWriteValue32_v2@11070 / cuStreamWriteValue32_v2_ptsz@11070 (a: CUstream, b: CUdeviceptr, c: u32, d: c_uint);
        submit none cuStreamWriteValue64: cuStreamWriteValue64@9000 / cuStreamWriteValue64_ptsz@9000 (a: CUstream, b: CUdeviceptr, c: u64, d: c_uint);
        submit sim cuStreamWriteValue64: cuStreamWriteValue64_v2@11070 / cuStreamWriteValue64_v2_ptsz@11070 (a: CUstream, b: CUdeviceptr, c: u64, d: c_uint);
    }};
}
