#include "common/text/tokenizer/encode_batch.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace taopd {

std::vector<std::vector<int32_t>> EncodeBatch(const Tokenizer& tokenizer,
                                              std::span<const std::string> texts,
                                              bool add_special_tokens, int num_threads) {
  std::vector<std::vector<int32_t>> ids(texts.size());
  if (num_threads <= 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  // The next text goes to the next free thread: lengths differ.
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i = next++; i < texts.size(); i = next++) {
      ids[i] = tokenizer.Encode(texts[i], add_special_tokens);
    }
  };
  std::vector<std::thread> threads;
  const size_t num_workers = std::min(static_cast<size_t>(std::max(num_threads, 1)), texts.size());
  for (size_t t = 1; t < num_workers; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return ids;
}

}  // namespace taopd
