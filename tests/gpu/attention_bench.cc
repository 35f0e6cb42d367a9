// Prints the time of one layer's decode attention and of RotateAndAppend on a GPU, beside the time
// that reading the keys and values once takes at the rate of a copy of device memory.
//
// Sequences have 1 row each and 8 key-value heads of 128 elements in bfloat16. "graph" lays the
// arrays out for 4,096 positions, as a recorded step does. Times are medians of CUDA events.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "taopd/attention/paged_attention_cuda.h"

namespace taopd {
namespace {

constexpr int64_t kKvHeads = 8, kHeadSize = 128;
constexpr int64_t kElementBytes = 2;
constexpr int64_t kMaxLen = 4096;
constexpr int kRepeats = 20;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}
void Check(const std::string& error) {
  if (error.empty()) return;
  std::fprintf(stderr, "%s\n", error.c_str());
  std::exit(1);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) {
    Check(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 16))));
    Check(cudaMemset(data_, 0x3c, static_cast<size_t>(bytes)));  // bfloat16 0.0115
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

double MicrosecondsOf(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 2; ++i) {
    Check(cudaEventRecord(begin));
    run();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float milliseconds;
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    times.push_back(milliseconds);
  }
  std::sort(times.begin() + 2, times.end());  // the first two warm up
  return 1e3 * times[2 + kRepeats / 2];
}

double CopyBytesPerSecond() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceMemory from(kBytes), to(kBytes);
  return 2 * kBytes /
         (1e-6 * MicrosecondsOf([&] {
            Check(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice));
          }));
}

void Measure(int64_t num_sequences, int64_t length, int64_t num_heads, bool graph, double rate) {
  const int64_t blocks_each = KvBlocksFor(length), num_blocks = num_sequences * blocks_each;
  std::vector<std::vector<int32_t>> tables;
  std::vector<PagedSequence> sequences;
  for (int64_t s = 0; s < num_sequences; ++s) {
    std::vector<int32_t>& table = tables.emplace_back();
    for (int64_t b = 0; b < blocks_each; ++b) {
      table.push_back(static_cast<int32_t>(b * num_sequences + s));
    }
    sequences.push_back({s, 1, length - 1, nullptr});
  }
  for (size_t s = 0; s < tables.size(); ++s) sequences[s].block_table = tables[s].data();
  const PagedStep step = graph
                             ? LayOutDecodeStep(sequences, kMaxLen, num_heads, kKvHeads, kHeadSize)
                             : LayOutPagedStep(sequences, num_heads, kKvHeads, kHeadSize);
  const auto array_bytes = static_cast<int64_t>(step.arrays.size() * sizeof(int32_t));
  const int64_t page_bytes = num_blocks * kKvHeads * kBlockTokens * kHeadSize * kElementBytes;
  const int64_t row_size = (num_heads + 2 * kKvHeads) * kHeadSize;
  const DeviceMemory arrays(array_bytes), keys(page_bytes), values(page_bytes);
  const DeviceMemory rows(num_sequences * row_size * kElementBytes);
  const DeviceMemory out(num_sequences * num_heads * kHeadSize * kElementBytes);
  const DeviceMemory turns(num_sequences * kHeadSize * kElementBytes);
  Check(cudaMemcpy(arrays.get(), step.arrays.data(), static_cast<size_t>(array_bytes),
                   cudaMemcpyHostToDevice));
  const auto* ints = static_cast<const int32_t*>(arrays.get());

  PlainPagedAttention attention;
  attention.pages = {DataType::kBFloat16, kKvHeads, kHeadSize, keys.get(), values.get()};
  attention.num_heads = num_heads;
  attention.scale = 0.088f;
  attention.counts = step.counts;
  attention.tiles_I = reinterpret_cast<const PagedTile*>(ints + step.first_tile);
  attention.block_tables_SM = ints + step.first_table;
  attention.max_blocks = step.max_blocks;
  attention.q_TND = rows.get();
  attention.q_row_stride = row_size;
  attention.out_TND = out.get();
  attention.out_row_stride = num_heads * kHeadSize;
  RotateAndAppend append;
  append.pages = attention.pages;
  append.num_rows = num_sequences;
  append.num_heads = num_heads;
  append.positions_T = ints;
  append.sequences_T = ints + step.first_sequence;
  append.block_tables_SM = attention.block_tables_SM;
  append.max_blocks = step.max_blocks;
  append.q_TND = append.k_TKD = append.v_TKD = append.q_out_TND = rows.get();
  append.q_row_stride = append.k_row_stride = append.v_row_stride = row_size;
  append.q_out_row_stride = row_size;
  append.q_norm_D = append.k_norm_D = append.cos_TD = append.sin_TD = turns.get();
  append.eps = 1e-6f;

  const DeviceMemory workspace(PagedAttentionWorkspaceBytes(attention));
  DeviceContext context;
  context.workspace = workspace.get();
  context.workspace_bytes = PagedAttentionWorkspaceBytes(attention);
  const double attend = MicrosecondsOf([&] { Check(PagedAttentionCuda(attention, context)); });
  const double rotate = MicrosecondsOf([&] { Check(RotateAndAppendCuda(append, context)); });
  const double bytes = 2.0 * num_sequences * length * kKvHeads * kHeadSize * kElementBytes;
  std::printf(
      "%4ld sequences of %4ld tokens, %2ld heads, %-6s attention %7.1f us, reading %6.1f us; "
      "append %5.1f us\n",
      static_cast<long>(num_sequences), static_cast<long>(length), static_cast<long>(num_heads),
      graph ? "graph:" : "eager:", attend, 1e6 * bytes / rate, rotate);
}

}  // namespace
}  // namespace taopd

int main() {
  const double rate = taopd::CopyBytesPerSecond();
  std::printf("a copy moves %.2f TB/s\n", 1e-12 * rate);
  for (const int64_t num_heads : {16, 32}) {
    for (const int64_t length : {64, 512, 4000}) {
      for (const int64_t num_sequences : {1, 16, 64, 256}) {
        for (const bool graph : {true, false}) {
          taopd::Measure(num_sequences, length, num_heads, graph, rate);
        }
      }
    }
  }
  return 0;
}
