// The common part of the three fake libraries: a GPU whose memory is the host's, and whose streams do nothing until the
// host waits for them. So memory that is freed, overwritten or unloaded too early shows.

#include <stddef.h>
#include <stdint.h>

struct operation {
  void (*run)(void* data);
  void* data;
  size_t bytes;
  struct operation* next;
};

struct list {
  struct operation *first, *last;
};

struct stream {
  struct list waiting;
  struct list noted;
  int is_recording;
  struct stream* next;
};

// Appends an operation with a copy of its data.
void fake_enqueue(struct stream* stream, void (*run)(void*), const void* data, size_t bytes);

// Whether `bytes` bytes from `address` on are GPU memory. If not, the GPU is lost, as by an illegal access.
int fake_is_memory(uint64_t address, size_t bytes);

// Adds a line to the text of fake_said().
void fake_say(const char* format, ...);

// Counts handles and allocations that were made and not released.
void fake_made(int more);

// The number that an environment variable holds.
long fake_setting(const char* name, long usual);
