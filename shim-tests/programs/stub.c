// Stands in for libraries at link time (FULL); at run time the empty one is found in its place.
#ifdef FULL
int cuInit(void) { return 0; }
int cuMemAlloc_v2(void) { return 0; }
int cuMemFree_v2(void) { return 0; }
int cuMemGetInfo_v2(void) { return 0; }
int cudaMalloc(void) { return 0; }
int cudaFree(void) { return 0; }
int cudaMemcpy(void) { return 0; }
int cudaMemset(void) { return 0; }
int cudaMemGetInfo(void) { return 0; }
#endif
int vgmem_test_stub;
