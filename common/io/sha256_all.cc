#include "common/io/sha256_all.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/io/sha256.h"

namespace taopd {

std::vector<std::string> Sha256OfAll(const std::vector<std::span<const std::byte>>& pieces,
                                     int max_threads) {
  std::vector<std::string> digests(pieces.size());
  std::atomic<size_t> next{0};
  const auto hash_some = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      Sha256 hash;
      hash.Update(pieces[i]);
      digests[i] = hash.HexDigest();
    }
  };
  const size_t num_threads = std::min(pieces.size(), static_cast<size_t>(std::max(1, max_threads)));
  std::vector<std::thread> others;
  for (size_t i = 1; i < num_threads; ++i) others.emplace_back(hash_some);
  hash_some();
  for (std::thread& thread : others) thread.join();
  return digests;
}

}  // namespace taopd
