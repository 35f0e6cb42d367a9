#include "kernels/cpu/attention/causal/causal_attention.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/attention/causal/float_tasks.h"
#include "kernels/cpu/attention/causal/pair_tasks.h"

namespace taopd::cpu {
namespace {

// The queries of a task of the forward pass. Each task packs the keys and values that its queries
// see, which takes little time compared with so many queries.
constexpr int64_t kTaskQueries = 1024;

bool MultipliesPairs(const CausalAttention& problem, const CausalKernels& kernels) {
  return problem.dtype == DataType::kBFloat16 && kernels.pairs.multiply_pairs != nullptr;
}

// A part of a pass, for all key-value heads.
template <typename Work>
struct Part {
  Work work;
  int64_t num_scores;  // per head, about
};

// Calls task(work, kv head, scratch) for each part and each key-value head, on all threads. Parts
// differ in size, so a thread takes the next task when it finishes one; the largest come first.
template <typename Work, typename Task>
void RunTasks(const CausalAttention& problem, std::vector<Part<Work>> parts,
              const ParallelFor& parallel_for, const Task& task) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.num_scores > b.num_scores; });
  const int64_t num_heads = problem.num_kv_heads;
  const int64_t num_tasks = static_cast<int64_t>(parts.size()) * num_heads;
  std::atomic<int64_t> next = 0;
  parallel_for(num_tasks, 1, [&](int64_t, int64_t) {
    static thread_local CausalScratch scratch;
    for (int64_t i = next++; i < num_tasks; i = next++) {
      task(parts[static_cast<size_t>(i / num_heads)].work, i % num_heads, &scratch);
    }
  });
}

// Returns about how many scores the queries of a sequence have.
int64_t NumScores(const CausalAttention& p, int64_t sequence, QueryRange queries) {
  const int64_t before = LengthOf(p, ParentOf(p, sequence));
  return (queries.end - queries.begin) * (before + (queries.begin + queries.end) / 2 + 1);
}

// Some queries of a sequence.
struct Queries {
  int64_t sequence;
  QueryRange range;
};

template <typename Task>
void RunForward(const CausalAttentionForward& problem, const CausalKernels& kernels,
                const ParallelFor& parallel_for) {
  std::vector<Part<Queries>> parts;
  for (int64_t i = 0; i < problem.num_sequences; ++i) {
    const int64_t length = LengthOf(problem, i);
    for (int64_t first = 0; first < length; first += kTaskQueries) {
      const QueryRange range = {first, std::min(first + kTaskQueries, length)};
      parts.push_back({{i, range}, NumScores(problem, i, range)});
    }
  }
  RunTasks(problem, std::move(parts), parallel_for,
           [&](const Queries& queries, int64_t kv_head, CausalScratch* scratch) {
             Task(problem, kernels, scratch, queries.sequence, kv_head, queries.range).Compute();
           });
}

template <typename Task>
void RunBackward(const CausalAttentionBackward& problem, const CausalKernels& kernels,
                 const ParallelFor& parallel_for) {
  // A sequence followed by the sequences that continue it, in order.
  std::vector<Part<std::vector<int64_t>>> groups;
  std::vector<size_t> group_of;
  for (int64_t i = 0; i < problem.num_sequences; ++i) {
    const int64_t parent = ParentOf(problem, i);
    group_of.push_back(parent < 0 ? groups.size() : group_of[static_cast<size_t>(parent)]);
    if (parent < 0) groups.emplace_back();
    auto& group = groups[group_of.back()];
    group.work.push_back(i);
    group.num_scores += NumScores(problem, i, {0, LengthOf(problem, i)});
  }
  RunTasks(problem, std::move(groups), parallel_for,
           [&](const std::vector<int64_t>& group, int64_t kv_head, CausalScratch* scratch) {
             const Task first(problem, kernels, scratch, group[0], kv_head);
             first.Compute();
             for (size_t i = 1; i < group.size(); ++i) {
               Task(problem, kernels, scratch, group[i], kv_head).Compute();
             }
             first.Finish();
           });
}

}  // namespace

void AttendCausally(const CausalAttentionForward& problem, const ParallelFor& parallel_for,
                    InstructionSet set) {
  const CausalKernels kernels(set);
  MultipliesPairs(problem, kernels) ? RunForward<PairForwardTask>(problem, kernels, parallel_for)
                                    : RunForward<FloatForwardTask>(problem, kernels, parallel_for);
}

void AttendCausallyBackward(const CausalAttentionBackward& problem, const ParallelFor& parallel_for,
                            InstructionSet set) {
  const CausalKernels kernels(set);
  MultipliesPairs(problem, kernels)
      ? RunBackward<PairBackwardTask>(problem, kernels, parallel_for)
      : RunBackward<FloatBackwardTask>(problem, kernels, parallel_for);
}

}  // namespace taopd::cpu
