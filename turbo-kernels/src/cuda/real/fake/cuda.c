// A fake libcuda.so: see machine.h. Not for several threads at once.
//
//   FAKE_GPUS  FAKE_DRIVER  FAKE_CAPABILITY  FAKE_MEMORY    numbers: GPUs, CUDA version, 90 for 9.0, bytes
//   FAKE_RUNNABLE    how many recordings can be prepared, before and after they are given back
//   FAKE_REFUSED     how many waits for the whole GPU are refused, as while another library records
//
// Machine code is text, and has every kernel except those that it says to be `without`. `add_u32(to, amount, count)` is
// executed, any other kernel is only reported.

#define _GNU_SOURCE
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  NOT_WHILE_RECORDING = 900,
};

struct memory {
  char* first;
  size_t bytes;
  struct memory* next;
};

struct function {
  char name[128];
  unsigned shared;
  struct function* next;
};

struct module {
  char* text;
  struct function* functions;
};

struct event {
  struct stream* stream;
  int is_done;
};

struct graph {
  struct list operations;
};

static struct memory *memories, *pinned;
static struct stream* streams;
static size_t used;
static int lost, live, is_current, runnables, waits;
static char said[1 << 16];

// ---- for tests and the other libraries ----

const char* fake_said(void) { return said; }
int fake_live(void) { return live; }
int fake_waits(void) { return waits; }
void fake_made(int more) { live += more; }

long fake_setting(const char* name, long usual) {
  const char* value = getenv(name);
  return value ? atol(value) : usual;
}

void fake_say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t length = strlen(said);
  vsnprintf(said + length, sizeof said - length, format, arguments);
  va_end(arguments);
}

static int is_in(const struct memory* memory, uint64_t address, size_t bytes) {
  for (; memory; memory = memory->next) {
    uint64_t first = (uint64_t)memory->first;
    if (address >= first && address + bytes <= first + memory->bytes) return 1;
  }
  lost = ILLEGAL_ADDRESS;
  return 0;
}

int fake_is_memory(uint64_t address, size_t bytes) { return is_in(memories, address, bytes); }

static void* take(struct memory** list, size_t bytes) {
  struct memory* it = malloc(sizeof *it);
  *it = (struct memory){aligned_alloc(256, (bytes + 255) / 256 * 256), bytes, *list};
  memset(it->first, 0xdd, bytes);
  *list = it;
  fake_made(1);
  return it->first;
}

// Frees the memory and returns its bytes; 0 when there is no such memory.
static size_t give(struct memory** list, void* first) {
  while (*list && (*list)->first != first) list = &(*list)->next;
  struct memory* gone = *list;
  if (!gone) return 0;
  size_t bytes = gone->bytes;
  *list = gone->next;
  free(gone->first);
  free(gone);
  fake_made(-1);
  return bytes;
}

static void append(struct list* list, void (*run)(void*), const void* data, size_t bytes) {
  struct operation* it = malloc(sizeof *it);
  *it = (struct operation){run, malloc(bytes), bytes, NULL};
  memcpy(it->data, data, bytes);
  *(list->first ? &list->last->next : &list->first) = it;
  list->last = it;
}

void fake_enqueue(struct stream* stream, void (*run)(void*), const void* data, size_t bytes) {
  append(stream->is_recording ? &stream->noted : &stream->waiting, run, data, bytes);
}

static void run_first(struct list* list) {
  struct operation* it = list->first;
  list->first = it->next;
  if (!lost) it->run(it->data);
  free(it->data);
  free(it);
}

static void forget(struct list* list) {
  while (list->first) {
    struct operation* it = list->first;
    list->first = it->next;
    free(it->data);
    free(it);
  }
}

// ---- the driver ----

#define CHECK(condition, error) \
  if (!(condition)) return error
#define ENTER             \
  CHECK(!lost, lost);     \
  CHECK(is_current, INVALID_CONTEXT)

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : fake_setting("FAKE_GPUS", 1) < 0 ? NO_DEVICE : OK; }

int cuDriverGetVersion(int* version) {
  *version = (int)fake_setting("FAKE_DRIVER", 13000);
  return OK;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == NO_DEVICE         ? "no CUDA-capable device is detected"
          : error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                     : NULL;
  return *text ? OK : INVALID_VALUE;
}

int cuDeviceGetCount(int* count) {
  *count = (int)fake_setting("FAKE_GPUS", 1);
  return OK;
}

int cuDeviceGet(int* gpu, int ordinal) {
  *gpu = ordinal;
  return OK;
}

int cuDeviceGetName(char* name, int bytes, int gpu) {
  snprintf(name, (size_t)bytes, "Pretended GPU %d", gpu);
  return OK;
}

int cuDeviceTotalMem_v2(size_t* bytes, int gpu) {
  (void)gpu;
  *bytes = (size_t)fake_setting("FAKE_MEMORY", 1 << 30);
  return OK;
}

int cuDeviceGetAttribute(int* value, int attribute, int gpu) {
  (void)gpu;
  long capability = fake_setting("FAKE_CAPABILITY", 90);
  switch (attribute) {
    case 75: *value = (int)(capability / 10); return OK;
    case 76: *value = (int)(capability % 10); return OK;
    case 16: *value = 132; return OK;  // multiprocessors
  }
  return INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void** context, int gpu) {
  (void)gpu;
  *context = &live;
  fake_made(1);
  return OK;
}

int cuDevicePrimaryCtxRelease_v2(int gpu) {
  (void)gpu;
  fake_made(-1);
  return OK;
}

int cuCtxSetCurrent(void* context) {
  CHECK(!lost, lost);
  is_current = context == &live;
  return OK;
}

int cuStreamSynchronize(struct stream* stream) {
  ENTER;
  CHECK(!stream->is_recording, NOT_WHILE_RECORDING);
  while (stream->waiting.first) run_first(&stream->waiting);
  return lost;
}

int cuCtxSynchronize(void) {
  ENTER;
  CHECK(waits++ >= fake_setting("FAKE_REFUSED", 0), NOT_WHILE_RECORDING);
  for (struct stream* it = streams; it; it = it->next) CHECK(!it->is_recording, NOT_WHILE_RECORDING);
  for (struct stream* it = streams; it; it = it->next) cuStreamSynchronize(it);
  return lost;
}

// ---- memory ----

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  ENTER;
  CHECK(bytes, INVALID_VALUE);
  CHECK(used + bytes <= (size_t)fake_setting("FAKE_MEMORY", 1 << 30), OUT_OF_MEMORY);
  *address = (uint64_t)take(&memories, bytes);
  used += bytes;
  return OK;
}

int cuMemFree_v2(uint64_t address) {
  ENTER;
  size_t bytes = give(&memories, (void*)address);
  used -= bytes;
  return bytes ? OK : INVALID_VALUE;
}

int cuMemGetInfo_v2(size_t* available, size_t* all) {
  ENTER;
  *all = (size_t)fake_setting("FAKE_MEMORY", 1 << 30);
  *available = *all - used;
  return OK;
}

int cuMemHostAlloc(void** first, size_t bytes, unsigned flags) {
  ENTER;
  CHECK(!flags && bytes, INVALID_VALUE);
  *first = take(&pinned, bytes);
  return OK;
}

int cuMemFreeHost(void* first) {
  ENTER;
  return give(&pinned, first) ? OK : INVALID_VALUE;
}

struct copy {
  uint64_t to, from;
  size_t bytes;
};

// Accepts only pinned memory: a copy from any other memory is done when the call returns, which this one is not.
static void upload(void* data) {
  struct copy* it = data;
  if (fake_is_memory(it->to, it->bytes) && is_in(pinned, it->from, it->bytes)) memcpy((void*)it->to, (void*)it->from, it->bytes);
}

static void download(void* data) {
  struct copy* it = data;
  if (fake_is_memory(it->from, it->bytes)) memcpy((void*)it->to, (void*)it->from, it->bytes);
}

static void fill(void* data) {
  struct copy* it = data;
  if (fake_is_memory(it->to, it->bytes)) memset((void*)it->to, (int)it->from, it->bytes);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, struct stream* stream) {
  ENTER;
  fake_enqueue(stream, upload, &(struct copy){to, (uint64_t)from, bytes}, sizeof(struct copy));
  return OK;
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, struct stream* stream) {
  ENTER;
  fake_enqueue(stream, download, &(struct copy){(uint64_t)to, from, bytes}, sizeof(struct copy));
  return OK;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, struct stream* stream) {
  ENTER;
  fake_enqueue(stream, fill, &(struct copy){to, value, bytes}, sizeof(struct copy));
  return OK;
}

// ---- streams and events ----

int cuStreamCreate(struct stream** stream, unsigned flags) {
  ENTER;
  CHECK(flags == 1, INVALID_VALUE);  // one that waits for no other
  *stream = calloc(1, sizeof **stream);
  (*stream)->next = streams;
  streams = *stream;
  fake_made(1);
  return OK;
}

int cuStreamDestroy_v2(struct stream* stream) {
  ENTER;
  struct stream** it = &streams;
  while (*it != stream) it = &(*it)->next;
  *it = stream->next;
  forget(&stream->waiting);
  forget(&stream->noted);
  free(stream);
  fake_made(-1);
  return OK;
}

int cuEventCreate(struct event** event, unsigned flags) {
  ENTER;
  CHECK(flags == 2, INVALID_VALUE);  // without timing
  *event = calloc(1, sizeof **event);
  (*event)->is_done = 1;
  fake_made(1);
  return OK;
}

int cuEventDestroy_v2(struct event* event) {
  ENTER;
  free(event);
  fake_made(-1);
  return OK;
}

static void reach(void* data) { (*(struct event**)data)->is_done = 1; }

int cuEventRecord(struct event* event, struct stream* stream) {
  ENTER;
  *event = (struct event){stream, 0};
  fake_enqueue(stream, reach, &event, sizeof event);
  return OK;
}

int cuEventSynchronize(struct event* event) {
  ENTER;
  while (!event->is_done && !lost) run_first(&event->stream->waiting);
  return lost;
}

// Each query makes the stream do one more operation.
int cuEventQuery(struct event* event) {
  ENTER;
  if (event->is_done) return OK;
  run_first(&event->stream->waiting);
  return lost ? lost : NOT_READY;
}

// ---- kernels ----

int cuModuleLoadData(struct module** module, const void* image) {
  ENTER;
  CHECK(!strncmp(image, "code for sm_", 12), INVALID_VALUE);
  *module = calloc(1, sizeof **module);
  (*module)->text = strdup(image);
  fake_made(1);
  return OK;
}

int cuModuleUnload(struct module* module) {
  ENTER;
  while (module->functions) {
    struct function* it = module->functions;
    module->functions = it->next;
    free(it);
  }
  free(module->text);
  free(module);
  fake_made(-1);
  return OK;
}

int cuModuleGetFunction(struct function** function, struct module* module, const char* name) {
  ENTER;
  struct function* it = calloc(1, sizeof *it);
  snprintf(it->name, sizeof it->name, "without %s", name);
  if (strstr(module->text, it->name)) {
    free(it);
    return NOT_FOUND;
  }
  snprintf(it->name, sizeof it->name, "%s", name);
  it->shared = 48 << 10;
  it->next = module->functions;
  module->functions = it;
  fake_say("found %s\n", name);
  *function = it;
  return OK;
}

int cuFuncSetAttribute(struct function* function, int attribute, int value) {
  ENTER;
  CHECK(attribute == 8 && value <= 232448, INVALID_VALUE);  // dynamic shared memory
  function->shared = (unsigned)value;
  fake_say("allowed %s %d\n", function->name, value);
  return OK;
}

struct addition {
  uint64_t to;
  uint32_t amount, count;
};

static void add(void* data) {
  struct addition* it = data;
  if (!fake_is_memory(it->to, it->count * 4)) return;
  for (uint32_t i = 0; i < it->count; ++i) ((uint32_t*)it->to)[i] += it->amount;
}

int cuLaunchKernel(struct function* function, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y,
                   unsigned block_z, unsigned shared, struct stream* stream, void** arguments, void** extra) {
  ENTER;
  CHECK(x && y && z && block && block <= 1024 && block_y == 1 && block_z == 1 && !extra, INVALID_VALUE);
  CHECK(y < 65536 && z < 65536 && shared <= function->shared, INVALID_VALUE);
  fake_say("launched %s %u %u %u by %u with %u\n", function->name, x, y, z, block, shared);
  if (!strcmp(function->name, "add_u32")) {
    struct addition it = {*(uint64_t*)arguments[0], *(uint32_t*)arguments[1], *(uint32_t*)arguments[2]};
    fake_enqueue(stream, add, &it, sizeof it);
  }
  return OK;
}

// ---- recordings ----

int cuStreamBeginCapture_v2(struct stream* stream, int mode) {
  ENTER;
  CHECK(!stream->is_recording && mode == 2, INVALID_VALUE);
  stream->is_recording = 1;
  return OK;
}

static struct graph* copy_of(const struct list* operations) {
  struct graph* graph = calloc(1, sizeof *graph);
  for (struct operation* it = operations->first; it; it = it->next) append(&graph->operations, it->run, it->data, it->bytes);
  fake_made(1);
  return graph;
}

int cuStreamEndCapture(struct stream* stream, struct graph** graph) {
  ENTER;
  CHECK(stream->is_recording, INVALID_VALUE);
  stream->is_recording = 0;
  *graph = copy_of(&stream->noted);
  forget(&stream->noted);
  return OK;
}

int cuGraphInstantiateWithFlags(struct graph** runnable, struct graph* graph, unsigned long long flags) {
  ENTER;
  CHECK(!flags, INVALID_VALUE);
  CHECK(runnables++ < fake_setting("FAKE_RUNNABLE", 1 << 30), OUT_OF_MEMORY);
  *runnable = copy_of(&graph->operations);
  return OK;
}

int cuGraphDestroy(struct graph* graph) {
  forget(&graph->operations);
  free(graph);
  fake_made(-1);
  return OK;
}

int cuGraphExecDestroy(struct graph* graph) { return cuGraphDestroy(graph); }

#ifndef FAKE_WITHOUT_GRAPHS
int cuGraphLaunch(struct graph* graph, struct stream* stream) {
  ENTER;
  for (struct operation* it = graph->operations.first; it; it = it->next) fake_enqueue(stream, it->run, it->data, it->bytes);
  return OK;
}
#endif
