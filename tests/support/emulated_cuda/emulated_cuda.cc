#include <link.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/emulated_cuda/cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated_cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarpSize = 32;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// A fiber is started by swapcontext, which makes system calls, and resumed by _longjmp. It runs one
// thread after the other and never ends.
struct Fiber {
  ucontext_t context = {};
  jmp_buf place;
  bool started = false;
  std::unique_ptr<char[]> stack;
  State state = State::kReady;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;  // as many as the largest block so far
  std::vector<char> lane_slots;
  ucontext_t start = {};
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  unsigned running = 0;
  int count = 0;
  std::vector<unsigned> order;
  std::minstd_rand random;
};

// The shared memory of all kernels: __shared__ variables are thread-local variables of the program,
// which lie together with its others.
struct SharedMemory {
  SharedMemory() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
          auto* const memory = static_cast<SharedMemory*>(data);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
            memory->begin = static_cast<char*>(info->dlpi_tls_data);
            memory->size = info->dlpi_phdr[i].p_memsz;
          }
          return 1;  // the program comes first
        },
        this);
    saved.assign(begin, begin + size);
  }
  ~SharedMemory() { std::copy(saved.begin(), saved.end(), begin); }
  // Fills it with NaN, which are -1 as integers.
  void Poison() const { std::memset(begin, 0xff, size); }

  char* begin = nullptr;
  size_t size = 0;
  std::vector<char> saved;
};

Block* block = nullptr;  // kernels run one at a time

void Wait(State state) {
  Fiber& fiber = *block->fibers[block->running];
  fiber.state = state;
  if (_setjmp(fiber.place) == 0) _longjmp(block->scheduler, 1);
}

void Enter() {
  for (;;) {
    (*block->body)();
    Wait(State::kDone);
  }
}

// Returns when the fiber waits or ends.
void Resume(Fiber* fiber) {
  if (_setjmp(block->scheduler) != 0) return;
  if (fiber->started) _longjmp(fiber->place, 1);
  fiber->started = true;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;  // Enter does not return
  makecontext(&fiber->context, Enter, 0);
  swapcontext(&block->start, &fiber->context);
}

// Releases fibers [begin, end) if all of them that are not done are at that barrier.
void Release(unsigned begin, unsigned end, State barrier) {
  for (unsigned i = begin; i < end; ++i) {
    const State state = block->fibers[i]->state;
    if (state != State::kDone && state != barrier) return;
  }
  for (unsigned i = begin; i < end; ++i) {
    if (block->fibers[i]->state == barrier) block->fibers[i]->state = State::kReady;
  }
}

void RunBlock(dim3 grid, dim3 index, dim3 size) {
  const unsigned num = size.x;
  for (unsigned i = 0; i < num; ++i) block->fibers[i]->state = State::kReady;
  block->order.resize(num);
  std::iota(block->order.begin(), block->order.end(), 0u);
  bool progress = true;
  while (progress) {
    progress = false;
    std::shuffle(block->order.begin(), block->order.end(), block->random);
    for (const unsigned i : block->order) {
      if (block->fibers[i]->state != State::kReady) continue;
      block->running = i;
      threadIdx = dim3(i);
      blockIdx = index;
      blockDim = size;
      gridDim = grid;
      Resume(block->fibers[i].get());
      progress = true;
    }
    for (unsigned i = 0; i < num; i += kWarpSize) {
      Release(i, std::min(num, i + kWarpSize), State::kAtWarpBarrier);
    }
    Release(0, num, State::kAtBlockBarrier);
  }
  for (unsigned i = 0; i < num; ++i) {
    // Threads wait for others at different barriers, which hangs on a GPU.
    if (block->fibers[i]->state != State::kDone) std::abort();
  }
}

}  // namespace

void Run(dim3 grid, dim3 block_size, const std::function<void()>& body) {
  static Block the_block;
  block = &the_block;
  while (block->fibers.size() < block_size.x) {
    block->fibers.push_back(std::make_unique<Fiber>());
    block->fibers.back()->stack = std::make_unique<char[]>(kStackBytes);
  }
  block->lane_slots.resize(size_t{64} * (block->fibers.size() + kWarpSize));
  block->body = &body;
  const char* const seed = std::getenv("TAOPD_EMULATION_SEED");
  block->random.seed(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 1);
  const SharedMemory shared_memory;
  for (unsigned x = 0; x < grid.x; ++x) {
    shared_memory.Poison();
    RunBlock(grid, dim3(x), block_size);
  }
}

void BlockBarrier() { Wait(State::kAtBlockBarrier); }
void WarpBarrier() { Wait(State::kAtWarpBarrier); }
void* LaneSlot(unsigned lane) {
  return &block->lane_slots[size_t{64} * (threadIdx.x / kWarpSize * kWarpSize + lane)];
}
int* BlockCount() { return &block->count; }

}  // namespace emulated_cuda
