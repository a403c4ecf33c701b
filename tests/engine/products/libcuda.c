// A driver that notes its last launch. Declarations as in cuda.h.
#include <string.h>

struct attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int allowed;
    } value;
};
struct config {
    unsigned grid[3], block[3], shared;
    void* stream;
    struct attribute* attributes;
    unsigned num_attributes;
};

struct {
    unsigned grid[3], block[3], shared, num_attributes, parameter;
    int id, allowed;
    unsigned long long stream, function;
} last;

int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return *value = attribute == 97 ? 1000 + device : 0, 0;
}
int cuGetErrorString(int code, const char** text) {
    return *text = code == 700 ? "an illegal memory access was encountered" : "other", 0;
}
int cuModuleLoadData(void** module, const void* image) {
    return *module = (void*)7, memcmp(image, "code", 4) ? 200 : 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    return *function = (void*)(size_t)name[0], module == (void*)7 ? 0 : 500;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    return attribute != 8 || value > 200000;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* number, void* function, int threads,
                                                size_t shared) {
    return *number = 2048 / threads, 0;
}
int cuLaunchKernelEx(const struct config* config, void* function, void** parameters, void** extra) {
    if (extra || config->grid[0] == 666) return 700;
    memcpy(last.grid, config->grid, sizeof last.grid);
    memcpy(last.block, config->block, sizeof last.block);
    last.shared = config->shared;
    last.stream = (unsigned long long)config->stream;
    last.num_attributes = config->num_attributes;
    last.id = config->attributes[0].id;
    last.allowed = config->attributes[0].value.allowed;
    last.parameter = *(unsigned*)parameters[0];
    last.function = (unsigned long long)function;
    return 0;
}
