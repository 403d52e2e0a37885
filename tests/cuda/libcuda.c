// A driver library for one kernel, fill(void* target, int value, long long count, float scale),
// which notes what reaches it. Built by test_launch.py as libcuda.so.1.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { kInvalidValue = 1, kInvalidImage = 200, kNotFound = 500 };

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status) {
    void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *function = dlsym(self, name);
    if (status) *status = *function ? 0 : 1;
    return 0;
}
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == kNotFound       ? "named symbol not found"
            : error == kInvalidValue ? "no such value"
                                     : "device kernel image is invalid";
    return 0;
}
int cuModuleLoadData(void** module, const void* image) {
    *module = (void*)0x11;
    return memcmp(image, "\x7f" "ELF", 4) ? kInvalidImage : 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = (void*)0x22;
    return strcmp(name, "fill") ? kNotFound : 0;
}
int cuFuncSetAttribute(void* function, int id, int value) {
    printf("function attribute: %d = %d\n", id, value);
    fflush(stdout);
    return value > 232448 ? kInvalidValue : 0;  // 227 KiB
}
// As cuda.h has them: a launch with attributes, of which programmatic stream serialization is 6 and
// the blocks of a cluster are 4.
enum { kCluster = 4 };
struct Attribute {
    int id, padding;
    unsigned value[16];
};
struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    struct Attribute* attributes;
    unsigned count;
};
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void* stream, void** parameters, void** extra) {
    void* target;
    int value;
    long long count;
    float scale;
    memcpy(&target, parameters[0], sizeof target);  // as the driver: by the kernel's own sizes
    memcpy(&value, parameters[1], sizeof value);
    memcpy(&count, parameters[2], sizeof count);
    memcpy(&scale, parameters[3], sizeof scale);
    printf("%p %u %u %u %u %u %u %u %p %d %lld %g\n", function, grid_x, grid_y, grid_z, block_x,
           block_y, block_z, shared, stream, extra == NULL, count, scale);
    fflush(stdout);
    for (long long i = 0; i < count; ++i) ((int*)target)[i] = value;
    return 0;
}
int cuLaunchKernelEx(const struct Config* config, void* function, void** parameters, void** extra) {
    for (unsigned i = 0; i < config->count; ++i) {
        const struct Attribute* at = config->attributes + i;
        printf("attribute %d = %u", at->id, at->value[0]);
        if (at->id == kCluster) printf(" %u %u", at->value[1], at->value[2]);
        printf("; ");
    }
    return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2],
                          config->block[0], config->block[1], config->block[2], config->shared,
                          config->stream, parameters, extra);
}
