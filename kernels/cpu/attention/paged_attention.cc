#include "kernels/cpu/attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/attention/attention_loops.h"
#include "kernels/cpu/layers/rows.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {
namespace {

// The number of rows of a prefill task: a multiple of every instruction set's tile. The keys of a
// partition are loaded from memory once for all of them.
constexpr int64_t kTaskRows = 60;
constexpr int64_t kShortTaskRows = 12;
// The number of tasks to aim for where the work allows it, so that every thread has some.
constexpr int64_t kEnoughTasks = 64;
// Fewer rows than this cost as much as this many, because the keys and values have to be read.
constexpr int64_t kMinRowCost = 8;

// Rows [first, first + num_rows) of some key-value heads of one sequence, counted as in QueryTile,
// and the partitions that they see.
struct Task {
  int64_t sequence;
  int64_t kv_head;
  int64_t num_kv_heads;
  int64_t first;
  int64_t num_rows;
  int64_t first_partition;
  int64_t end_partition;
  int64_t split;  // index of a SplitTask, or -1
};

// A task whose partitions are computed by several other tasks, which leave one state per partition.
struct SplitTask {
  int64_t first_partition;
  int64_t end_partition;
  int64_t first_state;  // index in Plan::states of the first partition's state
  int32_t tasks_left;   // the task that finishes last merges
};

struct Plan {
  std::vector<Task> whole_tasks;
  std::vector<Task> tasks;
  std::vector<SplitTask> splits;
  std::vector<float> states;
};

int64_t Group(const PagedAttention& p) { return p.num_heads / p.pool.num_kv_heads; }

// Returns the number of floats in the states of one partition.
int64_t StatesSize(const PagedAttention& p, const Task& task) {
  return task.num_kv_heads * task.num_rows * StateSize(p.pool.head_size);
}

// Sets the range of partitions that the rows of the task see.
void SetPartitions(const PagedAttention& p, Task* task) {
  const int64_t past = p.sequences[task->sequence].past_len;
  const int64_t first_row = past + task->first / Group(p);
  const int64_t last_row = past + (task->first + task->num_rows - 1) / Group(p);
  const int64_t first_seen =
      p.sliding_window > 0 ? std::max<int64_t>(0, first_row - p.sliding_window + 1) : 0;
  task->first_partition = first_seen / kPartitionTokens;
  task->end_partition = last_row / kPartitionTokens + 1;
}

int64_t NumPartitions(const Task& task) { return task.end_partition - task.first_partition; }

int64_t Cost(const Task& task) {
  return task.num_kv_heads * NumPartitions(task) * std::max(task.num_rows, kMinRowCost);
}

// Returns whether a sequence has few rows, as in decoding. It then has one task for all heads:
// heads follow each other in a block, so memory is read in order.
bool IsShort(const PagedAttention& p, const PagedSequence& sequence) {
  return sequence.num_rows * Group(p) <= kShortTaskRows;
}

// Adds the tasks of a sequence. Later rows see more keys and come first, so that the last tasks are
// short.
void AddTasks(const PagedAttention& p, int64_t sequence, int64_t task_rows,
              std::vector<Task>* tasks) {
  const int64_t num_rows = p.sequences[sequence].num_rows * Group(p);
  const int64_t heads = IsShort(p, p.sequences[sequence]) ? p.pool.num_kv_heads : 1;
  for (int64_t head = 0; head < p.pool.num_kv_heads; head += heads) {
    for (int64_t i = CeilDiv(num_rows, task_rows) - 1; i >= 0; --i) {
      const int64_t rest = num_rows - i * task_rows;
      Task task = {sequence, head, heads, i * task_rows, std::min(task_rows, rest), 0, 0, -1};
      SetPartitions(p, &task);
      tasks->push_back(task);
    }
  }
}

// Replaces a task by several tasks that take some of its partitions each.
void SplitPartitions(const PagedAttention& p, const Task& whole, int64_t parts, int64_t* num_states,
                     Plan* plan) {
  if (parts < 2) {
    plan->tasks.push_back(whole);
    return;
  }
  const int64_t partitions = NumPartitions(whole);
  const auto split = static_cast<int64_t>(plan->splits.size());
  plan->splits.push_back(
      {whole.first_partition, whole.end_partition, *num_states, static_cast<int32_t>(parts)});
  *num_states += partitions * StatesSize(p, whole);
  for (int64_t part = 0; part < parts; ++part) {
    Task task = whole;
    task.first_partition = whole.first_partition + partitions * part / parts;
    task.end_partition = whole.first_partition + partitions * (part + 1) / parts;
    task.split = split;
    plan->tasks.push_back(task);
  }
}

// Splits the tasks that are much longer than others: by partitions, and also by heads if that is
// not enough.
void SplitLongTasks(const PagedAttention& p, Plan* plan) {
  int64_t cost = 0;
  for (const Task& task : plan->whole_tasks) cost += Cost(task);
  const int64_t target = std::max<int64_t>(cost / kEnoughTasks, 1);
  int64_t num_states = 0;
  for (const Task& whole : plan->whole_tasks) {
    const int64_t parts = Cost(whole) / target;
    // With many rows, the states would take more time and memory than they are worth.
    const bool can_split = whole.num_rows <= kShortTaskRows;
    const int64_t partition_parts = can_split ? std::min(NumPartitions(whole), parts) : 1;
    const int64_t head_parts =
        std::clamp<int64_t>(parts / std::max<int64_t>(partition_parts, 1), 1, whole.num_kv_heads);
    for (int64_t part = 0; part < head_parts; ++part) {
      Task task = whole;
      task.kv_head = whole.kv_head + whole.num_kv_heads * part / head_parts;
      task.num_kv_heads =
          whole.kv_head + whole.num_kv_heads * (part + 1) / head_parts - task.kv_head;
      SplitPartitions(p, task, partition_parts, &num_states, plan);
    }
  }
  if (static_cast<int64_t>(plan->states.size()) < num_states) plan->states.resize(num_states);
}

void MakePlan(const PagedAttention& p, Plan* plan) {
  plan->whole_tasks.clear();
  plan->tasks.clear();
  plan->splits.clear();
  int64_t num_tasks = 0;
  for (int64_t s = 0; s < p.num_sequences; ++s) {
    num_tasks += CeilDiv(p.sequences[s].num_rows * Group(p), kTaskRows);
  }
  num_tasks *= p.pool.num_kv_heads;
  const int64_t task_rows = num_tasks < kEnoughTasks ? kShortTaskRows : kTaskRows;
  for (int64_t s = 0; s < p.num_sequences; ++s) AddTasks(p, s, task_rows, &plan->whole_tasks);
  SplitLongTasks(p, plan);
}

struct Scratch {
  std::vector<uint32_t> queries;
  std::vector<float> states;
};

class Worker {
 public:
  Worker(const PagedAttention& problem, const AttentionLoops& loops, Plan* plan)
      : p_(problem),
        loops_(loops),
        plan_(*plan),
        scale_log2e_(static_cast<float>(problem.scale * 1.4426950408889634)) {}

  void Compute(const Task& task) const {
    static thread_local Scratch scratch;
    PackQueries(task, &scratch);
    if (task.split < 0) {
      ComputeWhole(task, &scratch);
    } else {
      ComputePart(task, scratch);
    }
  }

 private:
  void ComputeWhole(const Task& task, Scratch* scratch) const {
    const int64_t size = StatesSize(p_, task);
    if (static_cast<int64_t>(scratch->states.size()) < size) scratch->states.resize(size);
    float* const states = scratch->states.data();
    Clear(task, states);
    for (int64_t i = task.first_partition; i < task.end_partition; ++i) {
      Attend(task, *scratch, i, states);
    }
    Finish(task, states);
  }

  // Computes the states of the task's partitions, and merges those of all if it is the last task of
  // its split.
  void ComputePart(const Task& task, const Scratch& scratch) const {
    SplitTask& split = plan_.splits[task.split];
    const int64_t size = StatesSize(p_, task);
    float* const states = plan_.states.data() + split.first_state;
    for (int64_t i = task.first_partition; i < task.end_partition; ++i) {
      float* const partition_states = states + (i - split.first_partition) * size;
      Clear(task, partition_states);
      Attend(task, scratch, i, partition_states);
    }
    if (std::atomic_ref<int32_t>(split.tasks_left).fetch_sub(1, std::memory_order_acq_rel) > 1) {
      return;
    }
    for (int64_t i = 1; i < split.end_partition - split.first_partition; ++i) {
      loops_.merge(states + i * size, task.num_kv_heads * task.num_rows, p_.pool.head_size,
                   scale_log2e_, states);
    }
    Finish(task, states);
  }

  void PackQueries(const Task& task, Scratch* scratch) const {
    const int64_t words = loops_.query_words(p_.pool.head_size);
    const int64_t num = task.num_kv_heads * task.num_rows * words;
    if (static_cast<int64_t>(scratch->queries.size()) < num) scratch->queries.resize(num);
    uint32_t* packed = scratch->queries.data();
    for (int64_t head = 0; head < task.num_kv_heads; ++head) {
      for (int64_t r = 0; r < task.num_rows; ++r, packed += words) {
        const int64_t place = RowOf(task, r) * p_.q_row_stride + ColumnOf(task, head, r);
        loops_.pack_query(At(p_.q_TND, place, 1, p_.pool.dtype), p_.pool.head_size, packed);
      }
    }
  }

  void Clear(const Task& task, float* states) const {
    loops_.clear(task.num_kv_heads * task.num_rows, p_.pool.head_size, states);
  }

  void Attend(const Task& task, const Scratch& scratch, int64_t partition, float* states) const {
    const KeyValuePool& pool = p_.pool;
    const PagedSequence& sequence = p_.sequences[task.sequence];
    const int64_t head_bytes = BytesPerHead(pool.dtype, pool.head_size);
    QueryTile tile;
    tile.num_rows = task.num_rows;
    tile.first = task.first;
    tile.group = Group(p_);
    tile.past_len = sequence.past_len;
    tile.sliding_window = p_.sliding_window;
    tile.scale_log2e = scale_log2e_;
    tile.head_size = pool.head_size;
    tile.block_stride_bytes = BytesPerBlock(pool.dtype, pool.num_kv_heads, pool.head_size);
    tile.block_table = sequence.block_table;
    tile.queries = scratch.queries.data();
    tile.blocks = static_cast<const char*>(pool.blocks) + task.kv_head * head_bytes;
    for (int64_t head = 0; head < task.num_kv_heads; ++head) {
      tile.next_head_follows = head + 1 < task.num_kv_heads;
      loops_.attend(tile, partition, states);
      tile.queries += task.num_rows * loops_.query_words(pool.head_size);
      tile.blocks += head_bytes;
      states += task.num_rows * StateSize(pool.head_size);
    }
  }

  void Finish(const Task& task, const float* states) const {
    for (int64_t head = 0; head < task.num_kv_heads; ++head) {
      for (int64_t r = 0; r < task.num_rows; ++r, states += StateSize(p_.pool.head_size)) {
        const int64_t place = RowOf(task, r) * p_.out_row_stride + ColumnOf(task, head, r);
        loops_.finish(states, p_.pool.head_size, At(p_.out_TND, place, 1, p_.pool.dtype));
      }
    }
  }

  // Row r of the task: its row of the batch, and the first element of its query head in that row.
  // `head` counts from the task's first.
  int64_t RowOf(const Task& task, int64_t r) const {
    return p_.sequences[task.sequence].first_row + (task.first + r) / Group(p_);
  }
  int64_t ColumnOf(const Task& task, int64_t head, int64_t r) const {
    const int64_t group = Group(p_);
    return ((task.kv_head + head) * group + (task.first + r) % group) * p_.pool.head_size;
  }

  const PagedAttention& p_;
  const AttentionLoops& loops_;
  Plan& plan_;
  const float scale_log2e_;
};

// Returns the number of blocks that contain new rows of a sequence.
int64_t NumBlocks(const PagedSequence& sequence) {
  if (sequence.num_rows == 0) return 0;
  return (sequence.past_len + sequence.num_rows - 1) / kBlockTokens -
         sequence.past_len / kBlockTokens + 1;
}

// Writes the part of a sequence that is in its i-th block with new rows.
void AppendBlock(const AppendKeysValues& p, const AttentionLoops& loops,
                 const PagedSequence& sequence, int64_t i) {
  const KeyValuePool& pool = p.pool;
  const int64_t end = sequence.past_len + sequence.num_rows;
  const int64_t index = sequence.past_len / kBlockTokens + i;
  const int64_t first = std::max(sequence.past_len, index * kBlockTokens);
  const int64_t num_tokens = std::min(end, (index + 1) * kBlockTokens) - first;
  const int64_t row = sequence.first_row + first - sequence.past_len;
  char* const block =
      static_cast<char*>(pool.blocks) +
      sequence.block_table[index] * BytesPerBlock(pool.dtype, pool.num_kv_heads, pool.head_size);
  for (int64_t head = 0; head < pool.num_kv_heads; ++head) {
    const int64_t column = head * pool.head_size;
    loops.append(At(p.k_TKD, row * p.k_row_stride + column, 1, pool.dtype), p.k_row_stride,
                 At(p.v_TKD, row * p.v_row_stride + column, 1, pool.dtype), p.v_row_stride,
                 first % kBlockTokens, num_tokens, pool.head_size,
                 block + head * BytesPerHead(pool.dtype, pool.head_size));
  }
}

}  // namespace

void AppendKeysAndValues(const AppendKeysValues& p, const ParallelFor& parallel_for,
                         InstructionSet set) {
  const AttentionLoops& loops = AttentionLoopsOf(set, p.pool.dtype);
  int64_t num_blocks = 0;
  for (int64_t s = 0; s < p.num_sequences; ++s) num_blocks += NumBlocks(p.sequences[s]);
  parallel_for(num_blocks, 1, [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // first block of sequence s
    for (int64_t s = 0; s < p.num_sequences && first < end; ++s) {
      const int64_t num = NumBlocks(p.sequences[s]);
      const int64_t last = std::min(end - first, num);
      for (int64_t i = std::max<int64_t>(begin - first, 0); i < last; ++i) {
        AppendBlock(p, loops, p.sequences[s], i);
      }
      first += num;
    }
  });
}

void AttendToPages(const PagedAttention& p, const ParallelFor& parallel_for, InstructionSet set) {
  static thread_local Plan plan_of_thread;
  Plan& plan = plan_of_thread;  // captured by reference, because each thread has its own plan
  MakePlan(p, &plan);
  const Worker worker(p, AttentionLoopsOf(set, p.pool.dtype), &plan);
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  // Tasks differ in length, so a thread takes the next one when it finishes one instead of working
  // through a fixed range.
  std::atomic<int64_t> next = 0;
  parallel_for(num_tasks, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < num_tasks; i = next++) worker.Compute(plan.tasks[i]);
  });
}

}  // namespace taopd::cpu
