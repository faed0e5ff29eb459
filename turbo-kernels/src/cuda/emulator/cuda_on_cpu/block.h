// The threads of one block.

namespace turbo {

enum class State : uint8_t { fresh, ready, collective, barrier, returned };

// A lane's call of a collective: its name, the lanes that take part, and the operands, which stay on the lane's stack.
struct Call {
  const char* name;
  unsigned mask;
  void* operands;
};

struct Copy {
  char* to;
  unsigned group;
  alignas(16) char bytes[16];
};

// An operand of a product in shared memory: rows that are swizzled in chunks of 16 bytes.
struct Matrix {
  const char* tile;
  unsigned offset, row_bytes;
  unsigned width;  // of the product
  bool columns;    // the rows have its columns side by side, else they are its columns

  // The rows in which the matrix lies.
  const char* first() const { return tile + offset / row_bytes * row_bytes; }
  size_t bytes() const { return (columns ? 16 : width) * row_bytes; }

  // [16, width]
  std::vector<unsigned short> values() const {
    std::vector<unsigned short> values;
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned n = 0; n < width; ++n) {
        const unsigned plain = offset + (columns ? k : n) * row_bytes + (columns ? n : k) * 2;
        const unsigned at = plain ^ (plain >> 7 & (row_bytes / 16 - 1)) << 4;
        values.push_back(*reinterpret_cast<const unsigned short*>(tile + at));
      }
    }
    return values;
  }
};

// The matrix that a product reads, kept for the first lane of a warp until the product is waited for.
struct Read {
  Matrix matrix;
  std::vector<unsigned short> values;
  unsigned group;
};

// A lane's registers that a product reads.
struct Fragment {
  const unsigned* from;
  unsigned values[4];
  unsigned group;
};

// A lane's sums, which it gets when it waits for them.
struct Product {
  float (*d)[4];
  unsigned group, eights;
  float sums[8][4];
};

struct Thread {
  State state;
  unsigned stack;  // unless it is fresh or has returned
  Call call;
  std::vector<Copy> copies;         // under way
  unsigned groups;                  // of copies, closed
  std::vector<const char*> landed;  // copies, since the last fence for products
  std::vector<Product> products;    // under way
  std::vector<Fragment> fragments;  // of them
  std::vector<Read> reads;          // of them
  unsigned product_groups;          // closed
  unsigned begun;                   // products of the warp, counted by its first lane
  bool fenced;                      // its registers, since the last wait for products

  void begin() {
    state = State::fresh;
    copies.clear();
    landed.clear();
    products.clear();
    fragments.clear();
    reads.clear();
    groups = product_groups = begun = 0;
    fenced = false;
  }

  // The future values of the sums `d`, which are NaN until then.
  Product& product(float (*d)[4], unsigned eights) {
    for (Product& product : products) {
      if (product.d != d) continue;
      product.group = product_groups;
      return product;
    }
    Product product = {d, product_groups, eights, {}};
    std::memcpy(product.sums, d, eights * sizeof product.sums[0]);
    std::memset(d, 0xff, eights * sizeof product.sums[0]);
    products.push_back(product);
    return products.back();
  }
};

struct Vec3 {
  unsigned x, y, z;
};

enum class Order : unsigned { forward, reverse, seeded };

// A launch as the host passes it.
struct Launch {
  unsigned grid[3];
  unsigned block;
  unsigned shared_bytes;
  unsigned order;
  uint64_t seed;
};

// Runs one block at a time. A thread that may continue has its bit set in `runnable_`.
class Block {
 public:
  Vec3 index, grid_size, size;
  unsigned thread;  // the one that runs
  char* shared;
  unsigned shared_bytes;

  bool failed() const { return error_[0] != 0; }
  const char* error() const { return error_; }

  void prepare(const Launch& launch, void (*kernel)(void*), void* arguments) {
    kernel_ = kernel;
    arguments_ = arguments;
    order_ = static_cast<Order>(launch.order);
    random_ = launch.seed * 2 + 1;
    grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
    size = {launch.block, 1, 1};
    error_[0] = 0;
  }

  // Runs all threads of block `at` until they have returned or one has failed.
  void run(Vec3 at) {
    index = at;
    at_barrier_ = 0;
    votes_ = voted_ = false;
    returned_ = 0;
    warps_runnable_ = 0;
    free_stacks_ = used_stacks_ = 0;
    for (unsigned w = 0; w * WARP < size.x; ++w) runnable_[w] = waiting_[w] = returned_lanes_[w] = 0;
    for (unsigned t = 0; t < size.x; ++t) {
      threads_[t].begin();
      set_runnable(t);
    }
    thread = order_ == Order::forward ? size.x - 1 : 0;  // so that the first is 0, or the last
    thread = next();
    enter(home_);
    if (failed()) return stacks_.forget_frames();
    check_warps_of_products();
  }

  // Records an error of the block as a whole.
  void note(const char* what) { snprintf(error_, sizeof error_, "%s; block (%u,%u,%u)", what, index.x, index.y, index.z); }

  // ---- for the thread that runs ----

  // Stops the block: `thread` never continues.
  __attribute__((format(printf, 2, 3), noreturn)) void fail(const char* format, ...) {
    char what[256];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    if (!failed()) {
      snprintf(error_, sizeof error_, "%s; block (%u,%u,%u), thread (%u,0,0)", what, index.x, index.y, index.z, thread);
    }
    switch_context(contexts_[threads_[thread].stack], home_, true);
    __builtin_unreachable();
  }

  // Meets the lanes of `mask` in the collective `name`. The last to come calls `complete` with the operands of all
  // lanes.
  template <class Operands>
  void collective(const char* name, unsigned mask, Operands& own, void (*complete)(Operands* const*, unsigned)) {
    const unsigned warp = thread / WARP, lane = thread % WARP;
    if (!(mask >> lane & 1)) fail("%s: the mask %08x does not name the calling lane", name, mask);
    if (mask & ~lanes(warp)) fail("%s: the mask %08x names a lane that does not exist", name, mask);
    if (mask & returned_lanes_[warp]) fail("%s: the mask %08x names a lane that has returned", name, mask);
    threads_[thread].call = {name, mask, &own};
    waiting_[warp] |= 1u << lane;
    if (mask & ~waiting_[warp]) return wait(State::collective);
    Operands* operands[WARP] = {};
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const unsigned other = __builtin_ctz(left);
      const Call& call = threads_[warp * WARP + other].call;
      if (call.name != name || call.mask != mask) {
        fail("%s, mask %08x: lane %u is in %s, mask %08x", name, mask, other, call.name, call.mask);
      }
      operands[other] = static_cast<Operands*>(call.operands);
    }
    waiting_[warp] &= ~mask;
    complete(operands, mask);
    for (unsigned left = mask & ~(1u << lane); left != 0; left &= left - 1) {
      const unsigned other = warp * WARP + __builtin_ctz(left);
      threads_[other].state = State::ready;
      set_runnable(other);
    }
  }

  // Meets all threads of the block; returns whether any of them votes.
  bool barrier(bool vote = false) {
    if (returned_ > 0) fail("__syncthreads: %u of %u threads have returned", returned_, size.x);
    votes_ |= vote;
    if (++at_barrier_ < size.x) {
      wait(State::barrier);
      return voted_;  // no thread passes the next barrier before this
    }
    at_barrier_ = 0;
    voted_ = votes_;
    votes_ = false;
    for (unsigned t = 0; t < size.x; ++t) {
      if (t == thread) continue;
      threads_[t].state = State::ready;
      set_runnable(t);
    }
    return voted_;
  }

  unsigned active_lanes() const { return lanes(thread / WARP) & ~returned_lanes_[thread / WARP]; }

  Thread& self() { return threads_[thread]; }
  Thread& thread_of_warp(unsigned lane) { return threads_[thread / WARP * WARP + lane]; }

  // Whether a thread has copied to these bytes and products might not see it yet.
  bool is_landing(const char* first, size_t bytes) const {
    for (unsigned t = 0; t < size.x; ++t) {
      for (const char* at : threads_[t].landed) {
        if (at >= first && at < first + bytes) return true;
      }
    }
    return false;
  }

  // Whether `bytes` bytes lie in shared memory, which some instructions require.
  bool is_shared(const void* at, size_t bytes) const {
    auto inside = [&](const char* first, size_t len) {
      return static_cast<const char*>(at) >= first && static_cast<const char*>(at) + bytes <= first + len;
    };
    return inside(shared, shared_bytes) || inside(static_shared, static_bytes);
  }

  char* static_shared;  // `__shared__` variables of the calling system thread
  size_t static_bytes;

 private:
  unsigned lanes(unsigned warp) const {
    const unsigned left = size.x - warp * WARP;
    return left >= WARP ? ~0u : (1u << left) - 1;
  }

  void set_runnable(unsigned t) {
    runnable_[t / WARP] |= 1u << t % WARP;
    warps_runnable_ |= 1u << t / WARP;
  }

  // The thread that continues after `thread`, which is not runnable itself unless it is chosen again.
  unsigned next() {
    const unsigned warp = thread / WARP, lane = thread % WARP;
    unsigned to_warp, to_lane;
    if (order_ == Order::forward) {
      const unsigned later = runnable_[warp] & ~((2u << lane) - 1);
      const unsigned warps = warps_runnable_ & ~((2u << warp) - 1);
      to_warp = later ? warp : __builtin_ctz(warps ? warps : warps_runnable_);
      to_lane = __builtin_ctz(later ? later : runnable_[to_warp]);
    } else if (order_ == Order::reverse) {
      const unsigned earlier = runnable_[warp] & ((1u << lane) - 1);
      const unsigned warps = warps_runnable_ & ((1u << warp) - 1);
      to_warp = earlier ? warp : 31 - __builtin_clz(warps ? warps : warps_runnable_);
      to_lane = 31 - __builtin_clz(earlier ? earlier : runnable_[to_warp]);
    } else {
      to_warp = pick(warps_runnable_);
      to_lane = pick(runnable_[to_warp]);
    }
    runnable_[to_warp] &= ~(1u << to_lane);
    if (runnable_[to_warp] == 0) warps_runnable_ &= ~(1u << to_warp);
    return to_warp * WARP + to_lane;
  }

  // A random bit of `bits`, by Marsaglia's xorshift.
  unsigned pick(unsigned bits) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const unsigned turn = random_ >> 59;
    const unsigned turned = turn ? bits >> turn | bits << (32 - turn) : bits;
    return (__builtin_ctz(turned) + turn) % 32;
  }

  // Lets other threads continue until the running thread leaves `state`.
  void wait(State state) {
    const unsigned own = thread;
    threads_[own].state = state;
    if (warps_runnable_ == 0) fail_for_deadlock();
    thread = next();
    enter(contexts_[threads_[own].stack]);
  }

  // Switches from `from` to the running thread, on a new stack if it has none.
  void enter(Context& from, bool over = false) {
    Thread& to = threads_[thread];
    if (to.state == State::fresh) {
      to.stack = free_stacks_ > 0 ? free_[--free_stacks_] : used_stacks_++;
      stacks_.begin(to.stack, contexts_[to.stack], &Block::fiber);
    }
    switch_context(from, contexts_[to.stack], over);
  }

  static void fiber();

  // The loop of a stack: it runs a thread, and after that more threads while they need no other stack.
  void run_threads() {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (used_stacks_ == 1) home_.bottom = bottom, home_.bytes = bytes;  // the first stack is entered from there
#endif
    const unsigned stack = threads_[thread].stack;
    do {
      threads_[thread].stack = stack;
      threads_[thread].state = State::ready;
      kernel_(arguments_);
      note_return();
      if (returned_ == size.x) switch_context(contexts_[stack], home_, true);
      if (warps_runnable_ == 0) fail_for_deadlock();
      thread = next();
    } while (threads_[thread].state == State::fresh);
    free_[free_stacks_++] = stack;
    enter(contexts_[stack], true);
  }

  void note_return() {
    const unsigned warp = thread / WARP, bit = 1u << thread % WARP;
    threads_[thread].state = State::returned;
    returned_ += 1;
    returned_lanes_[warp] |= bit;
    if (at_barrier_ > 0) fail("returned while %u of %u threads wait at __syncthreads", at_barrier_, size.x);
    for (unsigned left = waiting_[warp]; left != 0; left &= left - 1) {
      const Call& call = threads_[warp * WARP + __builtin_ctz(left)].call;
      if (call.mask & bit) fail("returned while lane %d waits for it in %s", __builtin_ctz(left), call.name);
    }
  }

  // Checks that four warps make each product.
  void check_warps_of_products() {
    for (unsigned warp = 0; warp * WARP < size.x; ++warp) {
      const unsigned first = warp / 4 * 4 * WARP;
      const unsigned begun = threads_[warp * WARP].begun, of_first = threads_[first].begun;
      const bool complete = first + 4 * WARP <= size.x;
      if (begun == of_first && (begun == 0 || complete)) continue;
      snprintf(error_, sizeof error_, "warp %u has begun %u products of four warps, warp %u %u; block (%u,%u,%u)", warp,
               begun, first / WARP, of_first, index.x, index.y, index.z);
      return;
    }
  }

  // No thread can continue: one waits for a lane of its warp, which waits for the whole block.
  [[noreturn]] void fail_for_deadlock() {
    auto missing = [&](unsigned t) {
      const bool waits = threads_[t].state == State::collective;
      return waits ? threads_[t].call.mask & ~waiting_[t / WARP] : 0;
    };
    unsigned stuck = 0;
    while (missing(stuck) == 0) ++stuck;
    fail("deadlock: thread (%u,0,0) waits in %s for lane %d, which waits at __syncthreads as %u of %u threads do", stuck,
         threads_[stuck].call.name, __builtin_ctz(missing(stuck)), at_barrier_, size.x);
  }

  void (*kernel_)(void*);
  void* arguments_;
  Order order_;
  uint64_t random_;
  unsigned at_barrier_, returned_;
  bool votes_, voted_;  // brought to the barrier that is waited at, and to the last one
  unsigned warps_runnable_, runnable_[MOST_WARPS];
  unsigned waiting_[MOST_WARPS];  // lanes in a collective
  unsigned returned_lanes_[MOST_WARPS];
  unsigned free_[MOST_THREADS], free_stacks_, used_stacks_;
  char error_[512];
  Context home_;
  Context contexts_[MOST_THREADS];  // of stacks
  Stacks stacks_;
  Thread threads_[MOST_THREADS];
};

// The block that the calling system thread runs. This is the only thread_local variable that is not a kernel's.
inline thread_local Block* running = nullptr;

inline void Block::fiber() { running->run_threads(); }

}  // namespace turbo
