#include "trainer/commands/train/run_facts.h"

#include <span>

#include "common/io/sha256.h"

namespace taopd {
namespace {

// With its length, so that no two lists of lists have the same bytes.
template <typename T>
void Add(std::span<const T> values, Sha256* hash) {
  const auto size = static_cast<uint64_t>(values.size());
  hash->Update(std::as_bytes(std::span(&size, 1)));
  hash->Update(std::as_bytes(values));
}

}  // namespace

std::string DataFingerprint(const std::vector<PromptRecord>& records) {
  Sha256 hash;
  for (const PromptRecord& record : records) {
    Add(std::span<const int32_t>(record.prompt_ids), &hash);
    Add(std::span<const int32_t>(record.response_ids), &hash);
    Add(std::span<const char>(record.answer), &hash);
  }
  return hash.HexDigest();
}

RunFacts FactsOfData(const std::vector<PromptRecord>& records, const Student& student) {
  return {{"data_fingerprint", DataFingerprint(records), false},
          {"tokenizer_hash", student.tokenizer ? student.tokenizer->hash() : "", false}};
}

}  // namespace taopd
