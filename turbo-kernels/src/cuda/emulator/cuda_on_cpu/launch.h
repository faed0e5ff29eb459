// All blocks of a launch, one after another.

namespace turbo {

// Blocks that no system thread runs. They keep their stacks, so that a launch costs no system call.
class Pool {
 public:
  ~Pool() {
    for (Block* block : free_) delete block;
  }

  Block* take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return new Block;
    Block* block = free_.back();
    free_.pop_back();
    return block;
  }

  void give_back(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(block);
  }

 private:
  std::mutex mutex_;
  std::vector<Block*> free_;
};

inline Pool pool;

// Dynamic shared memory, aligned to 16 bytes and not more.
class DynamicShared {
 public:
  explicit DynamicShared(unsigned bytes) : bytes_(bytes) {
    memory_ = static_cast<char*>(std::malloc(bytes + BEHIND));
  }
  ~DynamicShared() { std::free(memory_); }

  char* first() const { return memory_; }
  void poison() { std::memset(first(), 0xff, bytes_ + BEHIND); }
  bool written_behind() const {
    for (unsigned i = 0; i < BEHIND; ++i) {
      if (first()[bytes_ + i] != '\xff') return true;
    }
    return false;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr unsigned BEHIND = 0;  // it finds what is written there
#else
  static constexpr unsigned BEHIND = 256;
#endif
  char* memory_;
  unsigned bytes_;
};

// The `__shared__` variables of this thread: all thread_local memory of this library except `running`.
class StaticShared {
 public:
  StaticShared() {
    running_ = reinterpret_cast<char*>(&running);
    dl_iterate_phdr(&StaticShared::find, this);
  }

  char* first() const { return first_; }
  size_t bytes() const { return bytes_; }

  void poison() {
    if (bytes_ == 0) return;
    const size_t before = running_ - first_;
    std::memset(first_, 0xff, before);
    std::memset(running_ + sizeof running, 0xff, bytes_ - before - sizeof running);
  }

 private:
  static int find(dl_phdr_info* library, size_t, void* to) {
    auto* self = static_cast<StaticShared*>(to);
    for (unsigned i = 0; i < library->dlpi_phnum; ++i) {
      auto* first = static_cast<char*>(library->dlpi_tls_data);
      const size_t bytes = library->dlpi_phdr[i].p_memsz;
      const bool is_own = self->running_ >= first && self->running_ < first + bytes;
      if (library->dlpi_phdr[i].p_type == PT_TLS && first != nullptr && is_own) {
        self->first_ = first;
        self->bytes_ = bytes;
      }
    }
    return 0;
  }

  char* running_;
  char* first_ = nullptr;
  size_t bytes_ = 0;
};

// The reason why the hardware would refuse the launch, or null.
inline const char* refusal(const Launch& launch) {
  if (launch.block == 0 || launch.block > MOST_THREADS) return "a block has 1 to 1024 threads";
  if (launch.shared_bytes > MOST_SHARED) return "a block has at most 227 KiB of shared memory";
  for (unsigned axis = 0; axis < 3; ++axis) {
    const unsigned most = axis == 0 ? 0x7fffffffu : 65535u;
    if (launch.grid[axis] == 0 || launch.grid[axis] > most) return "a grid has 1 to 2147483647, 65535, 65535 blocks";
  }
  return nullptr;
}

// Runs all blocks. Returns false after an error, whose text is then in `error`.
inline bool launch(const Launch& launch, void (*kernel)(void*), void* arguments, char* error, size_t capacity) {
  if (const char* refused = refusal(launch)) {
    snprintf(error, capacity, "%s", refused);
    return false;
  }
  Block* block = pool.take();
  DynamicShared dynamic(launch.shared_bytes);
  StaticShared statics;
  block->prepare(launch, kernel, arguments);
  block->shared = dynamic.first();
  block->shared_bytes = launch.shared_bytes;
  block->static_shared = statics.first();
  block->static_bytes = statics.bytes();
  running = block;
  Vec3 at = {0, 0, 0};
  bool done = false;
  while (!done && !block->failed()) {
    dynamic.poison();
    statics.poison();
    block->run(at);
    if (dynamic.written_behind() && !block->failed()) {
      block->note("a thread wrote behind the dynamic shared memory");
    }
    if (++at.x == launch.grid[0]) at.x = 0, ++at.y;
    if (at.y == launch.grid[1]) at.y = 0, ++at.z;
    done = at.z == launch.grid[2];
  }
  const bool well = !block->failed();
  if (!well) snprintf(error, capacity, "%s", block->error());
  running = nullptr;
  pool.give_back(block);
  return well;
}

// Calls a kernel with pointers to its arguments, as cuLaunchKernel takes them.
template <auto KERNEL>
struct Arguments;

template <class... A, void (*KERNEL)(A...)>
struct Arguments<KERNEL> {
  static constexpr unsigned COUNT = sizeof...(A);
  static constexpr unsigned BYTES[COUNT + 1] = {sizeof(A)..., 0};

  static void call(void* arguments) { unpack(static_cast<void**>(arguments), std::index_sequence_for<A...>()); }

  template <size_t... I>
  static void unpack([[maybe_unused]] void** arguments, std::index_sequence<I...>) {
    KERNEL(*static_cast<A*>(arguments[I])...);
  }
};

template <auto KERNEL>
int launch_with(const Launch* shape, void** arguments, unsigned count, char* error, size_t capacity) {
  if (count != Arguments<KERNEL>::COUNT) {
    snprintf(error, capacity, "%u arguments for %u parameters", count, Arguments<KERNEL>::COUNT);
    return 1;
  }
  return launch(*shape, &Arguments<KERNEL>::call, arguments, error, capacity) ? 0 : 1;
}

}  // namespace turbo

// The functions that the host calls: one runs kernel `name` and returns 0, or 1 and a text; the other tells the bytes
// of each parameter.
#define TURBO_LAUNCHER(name)                                                                                       \
  extern "C" __attribute__((visibility("default"))) int turbo_launch_##name(                                       \
      const turbo::Launch* shape, void** arguments, unsigned count, char* error, size_t capacity) {                \
    return turbo::launch_with<&name>(shape, arguments, count, error, capacity);                                    \
  }                                                                                                                \
  extern "C" __attribute__((visibility("default"))) const unsigned* turbo_parameters_##name(unsigned* count) {     \
    *count = turbo::Arguments<&name>::COUNT;                                                                       \
    return turbo::Arguments<&name>::BYTES;                                                                         \
  }
