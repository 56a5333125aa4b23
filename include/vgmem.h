/* Control interface of libvgmem.so. A program that does not know vgmem needs none of it. */
#ifndef VGMEM_H
#define VGMEM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Where the page of a pooled address lies. */
typedef struct vgmem_page {
    unsigned long long base;  /* first address of the page */
    unsigned long long bytes; /* bytes of the page */
    int gpu;                  /* ordinal of the GPU that it lies on, -1 for host RAM */
    int home;                 /* ordinal of the GPU whose context allocated it */
} vgmem_page;

/* 1 if pooling is on in this process, else 0. */
int vgmem_active(void);

/* How many addresses of the library were given out by dlsym and cuGetProcAddress. */
unsigned long long vgmem_hooks_given(void);

/* 1 if the exported driver function was ever called, 0 if not, -1 if nothing of that name is exported. */
int vgmem_hook_reached(const char *symbol);

/* Writes where the page of an address lies and returns 1; returns 0 if the address is not pooled. page may be NULL. */
int vgmem_page_of(unsigned long long address, vgmem_page *page);

#ifdef __cplusplus
}
#endif

#endif
