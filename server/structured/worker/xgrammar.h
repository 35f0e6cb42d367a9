// The library xgrammar, through the C interface of tvm-ffi that its Python wheel registers. Its
// exceptions become statuses.
//
// One thread may compile while another one follows compiled grammars. An object may be used by one
// thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/structured/grammar_spec.h"

namespace taopd {

// The state of one text under a grammar.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  // Takes the next id. Returns INVALID_ARGUMENT if the grammar does not allow it.
  virtual absl::Status Accept(int32_t id) = 0;
  // Returns whether a stop id has been accepted, which ends the text.
  virtual bool HasEnded() const = 0;
  // Sets bit v % 64 of bits[v / 64] for the ids that may follow and clears it for the others.
  // Returns false, and leaves the bits unchanged, if all ids may follow. REQUIRES: !HasEnded().
  virtual absl::StatusOr<bool> Fill(std::span<uint64_t> bits) = 0;
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  // The grammar and the vocabulary must outlive the matcher. Stop ids are allowed where the text is
  // complete.
  virtual absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher(
      const std::vector<int32_t>& stop_ids) const = 0;
  // Its approximate size in memory.
  virtual int64_t num_bytes() const = 0;
};

class GrammarLibrary {
 public:
  virtual ~GrammarLibrary() = default;
  // token_bytes[v] are the bytes of id v; those of special ids are empty, and no grammar allows
  // them.
  static absl::StatusOr<std::unique_ptr<GrammarLibrary>> Load(
      const std::vector<std::string>& token_bytes, const std::vector<int32_t>& eos_ids);

  // Returns INVALID_ARGUMENT if the spec is malformed or unsupported, or needs too much memory.
  virtual absl::StatusOr<std::unique_ptr<CompiledGrammar>> Compile(const GrammarSpec& spec) = 0;
};

}  // namespace taopd
