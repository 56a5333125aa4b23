// A library that is not CUDA. Its names begin with `cu`; one is even spelled as the driver's.
int cudnnCreate(void) { return 101; }
int cublasCreate(void) { return 102; }
int curl_easy_init(void) { return 103; }
int cuMemAlloc_v2(void) { return 104; }
int cudaMalloc(void) { return 105; }
int cu(void) { return 106; }
