// CUDA C++ as plain C++17: kernels run on the processor, so that their barriers, collectives and fragments are tested
// without a GPU.
//
// A unit consists of these files, the kernels, and a TURBO_LAUNCHER(name) for each kernel. Every CUDA thread is a fiber
// that runs until it has to wait: at a barrier or in a collective of its warp. The launch's order decides which fiber
// continues then, so a missing barrier shows under some order. Wrong uses of memory show where possible: shared memory
// is filled with 0xff (NaN) before each block, and the targets of asynchronous copies and products hold 0xff until they
// are waited for.
//
//   file              | for
//   fibers.h          | stacks, and switching between them in a few instructions
//   block.h           | the threads of one block: what each waits for, and which continues
//   launch.h          | all blocks, one after another; an error is a text, never an abort
//   language.h        | __global__, __shared__, threadIdx and vector types
//   collectives.h     | __syncthreads, shuffles, votes
//   numbers.h         | bits, rounding, fast functions, atomics
//   tensor_cores.h    | mma, ldmatrix, cp.async
//   wgmma.h           | products of four warps
//
// Not shown: the rounding of the GPU's fast functions and tensor cores, memory order between threads that run at the
// same time, when asynchronous work is done before it is waited for, a thread's own stores to shared memory that it has
// not fenced for products, where shared memory begins, speed.
#define TURBO_ON_CPU 1

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#define TURBO_UCONTEXT 1
#endif
#if defined(TURBO_UCONTEXT)
#include <ucontext.h>
#endif

namespace turbo {

constexpr unsigned WARP = 32;
constexpr unsigned MOST_THREADS = 1024;
constexpr unsigned MOST_WARPS = MOST_THREADS / WARP;
constexpr unsigned MOST_SHARED = 227 * 1024;

// The context of a fiber that is not running: where it continues.
struct Context {
#if defined(TURBO_UCONTEXT)
  ucontext_t place;
#else
  void* stack_pointer;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
#endif
};

#if !defined(TURBO_UCONTEXT)
extern "C" __attribute__((visibility("hidden"))) void turbo_switch(void** from, void* to);
// Saves the registers that a function preserves in the System V ABI; rounding modes are the same in all fibers.
asm(R"(
  .text
  .type turbo_switch, @function
turbo_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size turbo_switch, . - turbo_switch
)");
#endif

// Leaves `from` and continues in `to`. A fiber that is over is never resumed.
inline void switch_context(Context& from, Context& to, bool over) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(over ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
  (void)over;
#if defined(TURBO_UCONTEXT)
  swapcontext(&from.place, &to.place);
#else
  turbo_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The stacks of the fibers, each above a guard page. Their memory is allocated when they are first used.
class Stacks {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t BYTES = 516 << 10;  // red zones around every variable
  static constexpr size_t LEFT = 8 << 10;     // more than the frames below a kernel's
#else
  static constexpr size_t BYTES = 132 << 10;
#endif
  static constexpr size_t GUARD = 4 << 10;

  Stacks() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, BYTES * MOST_THREADS, PROT_NONE, flags, -1, 0);
    if (memory == MAP_FAILED) std::perror("stacks for 1024 threads"), std::abort();
    memory_ = static_cast<char*>(memory);
  }

  ~Stacks() { munmap(memory_, BYTES * MOST_THREADS); }

  // Forgets the frames of kernels that did not return, since these stacks, or this memory, will be used again.
  void forget_frames() {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(memory_, usable_ * BYTES);
#endif
  }

  // Makes `context` start with `entry` on stack `index`. `entry` never returns.
  void begin(unsigned index, Context& context, void (*entry)()) {
    char* bottom = memory_ + index * BYTES + GUARD;
    const size_t bytes = BYTES - GUARD;
    const size_t colour = index * 320 % 4096;  // so that the stacks in use do not share few sets of the caches
    if (index >= usable_) {
      mprotect(bottom, bytes, PROT_READ | PROT_WRITE);
      usable_ = index + 1;
    }
#if defined(__SANITIZE_ADDRESS__)
    // Clears the part that the last thread on this stack left when it had returned. A whole stack is a hundred times as
    // large, and clearing the sanitizer's records of it took a quarter of the time of its tests.
    ASAN_UNPOISON_MEMORY_REGION(bottom + bytes - LEFT, LEFT);
    context.bottom = bottom;
    context.bytes = bytes;
#endif
#if defined(TURBO_UCONTEXT)
    getcontext(&context.place);
    context.place.uc_stack.ss_sp = bottom;
    context.place.uc_stack.ss_size = bytes - colour;
    context.place.uc_link = nullptr;
    makecontext(&context.place, entry, 0);
#else
    // six registers, the address for `ret`, and one slot that aligns the stack as a call would
    void** top = reinterpret_cast<void**>(bottom + bytes - colour) - 8;
    std::memset(top, 0, 8 * sizeof(void*));
    top[6] = reinterpret_cast<void*>(entry);
    context.stack_pointer = top;
#endif
  }

 private:
  char* memory_;
  unsigned usable_ = 0;  // stacks are taken in ascending order
};

}  // namespace turbo
